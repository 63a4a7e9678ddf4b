"""`module:Class` names a backend that need not be installed, wherever a backend is named."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
from environment import GOOD, Environment

import backbay
from backbay import BackendUnavailableError
from backbay.discovery.installed import entry


@pytest.fixture
def loose(environment: Environment) -> Environment:
    """The class Good in a module, of no distribution."""
    environment.install("loose", {"loose_module": GOOD}, [], group="something.else")
    return environment


def test_open_and_choose_take_it(loose: Environment) -> None:
    code = """
    import backbay
    with backbay.open(None, "loose_module:Good") as backend:
        print(type(backend).__name__, backend.name, backbay.choose("loose_module:Good"))
    """
    done = loose.python(code)
    assert done.stdout == "Good loose_module:Good loose_module:Good: it was asked for\n", done.stderr


def test_the_environment_variable_takes_it_and_doctor_tries_it(loose: Environment) -> None:
    named = {"BACKBAY_BACKEND": "loose_module:Good"}
    assert loose.python("import backbay; print(backbay.open().name)", **named).stdout == "loose_module:Good\n"
    report = json.loads(loose.backbay("doctor", "--json", **named).stdout)
    assert (report["choice"], report["usable"]) == ("loose_module:Good", True)


def test_an_entry_point_may_name_the_class_itself(environment: Environment) -> None:
    source = GOOD.replace("@hookimpl\n    def backbay_backend():\n        return Good\n", "")
    assert source != GOOD
    environment.install(
        "bare", {"bare_module": source}, ["bare = bare_module:Good", "odd = bare_module:kernel"]
    )
    code = """
    import backbay, sys
    entry = backbay.backends()["bare"]
    assert "bare_module" not in sys.modules
    with backbay.open(None, "bare") as backend:
        print(type(backend).__name__, backend.name, entry.module)
    try:
        backbay.open(None, "odd")
    except backbay.BackendUnavailableError as error:
        print(error)
    """
    good, odd = environment.python(code).stdout.splitlines()
    assert good == "Good bare bare_module:Good"
    assert odd.startswith("backend 'odd' of bare 1.0: ")
    assert "has no hook backbay_backend()" in odd


def test_ops_shows_its_kernels(loose: Environment) -> None:
    done = loose.backbay("ops", "--backend", "loose_module:Good", "--json")
    mulmat = next(op for op in json.loads(done.stdout) if op["op"] == "mulmat")
    assert mulmat["backends"] == {"loose_module:Good": "kernel"}, done.stderr
    missing = loose.backbay("ops", "--backend", "loose_module:God")
    assert missing.returncode == 1
    assert "module 'loose_module' has no 'God'; its backends: Good" in " ".join(missing.stdout.split())


def test_the_installed_command_finds_a_class_in_the_current_folder(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.py").write_text(dedent(GOOD))
    (tmp_path / "here" / "numpy.py").write_text("raise RuntimeError('installed modules come first')")
    monkeypatch.chdir(tmp_path / "here")
    named = {"BACKBAY_BACKEND": "mine:Good"}
    report = json.loads(environment.installed_command("doctor", "--json", **named).stdout)
    assert (report["choice"], report["usable"]) == ("mine:Good", True)
    safe = environment.installed_command("doctor", "--json", PYTHONSAFEPATH="1", **named)
    assert "there is no module 'mine'; it must lie in the current folder" in safe.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "no_such_module:Good",
            "there is no module 'no_such_module'; it must lie in the current folder, or in one that PYTHONPATH names",
        ),
        ("backbay.nothing:Good", "there is no module 'backbay.nothing'; it must lie"),
        ("loose:Absent", "module 'loose' has no 'Absent'; its backends: Mine"),
        ("loose:number", "a backend is a subclass of backbay.Backend, got 5"),
        ("loose:Bare", "Bare states no contract version"),
        ("needy:Mine", "ModuleNotFoundError: No module named 'a_library_that_is_not_there'"),
        ("loose:", "a class must be given as module:Class"),
        (":Mine", "a class must be given as module:Class"),
    ],
)
def test_what_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / "loose.py").write_text(
        "from backbay import KernelBackend\nnumber = 5\nclass Bare(KernelBackend): pass\n"
        "class Mine(KernelBackend): contract_version = 1\n"
    )
    (tmp_path / "needy.py").write_text("import a_library_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendUnavailableError) as caught:
        backbay.open(None, name)
    assert str(caught.value).startswith(f"backend {name!r}: {message}")


def test_the_class_itself_is_had_by_loading_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import backbay\nclass Mine(backbay.KernelBackend):\n    contract_version = 1\n"
    (tmp_path / "loose_again.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert entry("loose_again:Mine").load().__qualname__ == "Mine"
