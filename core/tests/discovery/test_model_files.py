"""Openers of other packages: asked for what is no file, in turn, and blamed by name if they fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from environment import Environment
from gguf_build import write_model

GROUP = "backbay.model_files"
OPENER = """
    from pathlib import Path
    from backbay import gguf

    def open_stored(path, only):
        if not str(path).startswith("stored:"):
            return None
        return gguf.open(Path(str(path).removeprefix("stored:")), only)
"""
OPEN = """
    from backbay.discovery import open_model
    print(sorted(open_model("stored:{path}").tensors))
    print(sorted(open_model("{path}").tensors))
    print(sorted(open_model("stored:{path}", lambda name: False).tensors))
"""


def test_an_opener_of_another_package_is_asked_for_a_name(environment: Environment, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path)
    environment.install("stores", {"stores": OPENER}, ["stored = stores:open_stored"], group=GROUP)
    run = environment.python(OPEN.format(path=path))
    first, second, none = run.stdout.splitlines()
    assert first == second != none == "[]"


@pytest.mark.fault(
    "a package that opens model files cannot be imported", "BackbayError naming the package and the cause"
)
def test_an_opener_that_cannot_be_imported_is_named(environment: Environment, tmp_path: Path) -> None:
    environment.install("broken", {"broken": "import nowhere"}, ["it = broken:open_it"], group=GROUP)
    ran = environment.backbay("inspect", "stored:x")
    assert ran.returncode == 1
    assert "the opener 'it' of broken 1.0 cannot be loaded: ModuleNotFoundError" in ran.stderr
    path = tmp_path / "model.gguf"
    write_model(path)
    assert environment.backbay("inspect", str(path)).returncode == 0  # files need no opener


def test_two_openers_of_one_name_are_an_error(environment: Environment) -> None:
    for name in ("one", "two"):
        environment.install(name, {name: OPENER}, [f"stored = {name}:open_stored"], group=GROUP)
    ran = environment.backbay("inspect", "stored:x")
    assert "the opener 'stored' is provided by" in ran.stderr
    assert "one 1.0" in ran.stderr
    assert "two 1.0" in ran.stderr
