"""The registry of architectures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from model_files import changed

import backbay
from backbay import BackbayError, ModelFileError
from backbay_engine.models import architectures, load_model


def install(site, distribution, *, names=("dreamer",), body="", at=":Dreamer"):
    """A distribution with a module of its own, and an entry point for each name."""
    module = distribution.replace("-", "_")
    (site / f"{module}.py").write_text(body)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    points = "".join(f"{name} = {module}{at}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[backbay.models]\n{points}")


DREAMER = """
from backbay_engine.models import Model

class Dreamer(Model):
    vocabulary_size = 7

    def forward(self, ctx, batch):
        return batch.tokens
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def load(architecture, folder):
    path = changed("qwen2", folder / "m.gguf", architecture=architecture)
    with backbay.open(path, backend="cpu_ref") as backend:
        return load_model(backend)


def test_a_package_adds_an_architecture(site):
    install(site, "dreamer-one", body=DREAMER)
    assert load("dreamer", site).vocabulary_size == 7


def test_a_plugin_has_a_hook_for_several_architectures(site):
    hook = (
        "from backbay import hookimpl\n@hookimpl\ndef backbay_model(name): return {'dreamer': Dreamer}[name]"
    )
    install(site, "dreamer-hook", names=["dreamer", "sleeper"], body=f"{DREAMER}\n{hook}", at="")
    assert load("dreamer", site).vocabulary_size == 7
    with pytest.raises(
        BackbayError, match=r"architecture 'sleeper' of dreamer-hook 1.0 cannot be loaded: KeyError"
    ):
        load("sleeper", site)


def test_an_unknown_architecture_is_told_with_its_nearest_and_all_there_are(tmp_path):
    with pytest.raises(ModelFileError) as told:
        load("qwen4", tmp_path)
    assert "found 'qwen4'; nearest: 'qwen" in str(told.value)
    assert f"installed: {', '.join(sorted(architectures()))}, found" in str(told.value)


def test_the_page_on_the_engine_names_every_architecture():
    page = (Path(__file__).parents[4] / "docs" / "engine.md").read_text()
    assert [name for name in architectures() if f"`{name}`" not in page] == []


def test_two_of_one_name_are_an_error_that_names_both(site):
    install(site, "dreamer-two", body=DREAMER)
    install(site, "dreamer-three", body=DREAMER)
    with pytest.raises(BackbayError, match=r"'dreamer' is provided by dreamer-t\w+ 1.0 and dreamer-t\w+ 1.0"):
        load("dreamer", site)


def test_a_package_cannot_take_the_place_of_one_of_ours(site):
    install(site, "dreamer-four", names=["qwen2"], body=DREAMER)
    with pytest.raises(BackbayError, match=r"'qwen2' is provided by backbay-engine \S+ and dreamer-four 1.0"):
        load("qwen2", site)


@pytest.mark.parametrize(
    ("distribution", "body", "told"),
    [
        ("dreamer-a", "import nothing_of_that_name", "cannot be loaded: ModuleNotFoundError"),
        ("dreamer-b", "raise SystemExit(3)", "cannot be loaded: SystemExit"),
        ("dreamer-c", "Dreamer = 3", "3 is not a subclass"),
        ("dreamer-d", DREAMER.replace("def forward", "def forwards"), "does not implement forward"),
    ],
)
def test_a_broken_one_is_told_with_its_package(site, distribution, body, told):
    install(site, distribution, body=body)
    with pytest.raises(BackbayError, match=rf"architecture 'dreamer' of {distribution} 1.0.*{told}"):
        load("dreamer", site)


def test_a_broken_one_harms_no_other(site):
    install(site, "dreamer-e", body="raise SystemExit(3)")
    assert "dreamer" in architectures()
    assert load("qwen2", site).vocabulary_size == 64


def test_no_architecture_is_imported_before_a_file_asks_for_it():
    program = (
        "import sys, backbay_engine.models as m; m.architectures();"
        "print([n for n in sys.modules if n.startswith('backbay_engine.models.')])"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert sorted(eval(shown.stdout)) == [
        "backbay_engine.models.batch",
        "backbay_engine.models.contract",
        "backbay_engine.models.registry",
    ]
