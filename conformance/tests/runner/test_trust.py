"""Replay files and certificates are data: of themselves they run no code, and a damaged one is no failure of a backend."""

from __future__ import annotations

import json
import os
import sys
from base64 import b85encode
from pathlib import Path
from typing import Any
from zlib import compress

import pytest
from commands import conform, run_command

from backbay import BackbayError, OptionError
from backbay_conformance import Outcome
from backbay_conformance.command import command as conform_command
from backbay_conformance.report.certificate import TITLE
from backbay_conformance.runner.replay import as_file, read_file
from backbay_conformance.runner.selection import RunSettings
from backbay_conformance.suite.profiles import SUITE_VERSION
from backbay_register import certificate_command

PLANTED = "raise SystemExit('planted code has run')\n"


def replay_file(folder: Path, **changes: Any) -> str:
    outcome = Outcome("core/neg/0", check="bound", call="neg(f32[1] contiguous)")
    path = folder / "failure.json"
    path.write_text(json.dumps({**as_file(outcome, RunSettings("cpu_ref", 0)), **changes}))
    return str(path)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A class of a module that tells when it is imported."""
    (tmp_path / "planted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{PLANTED}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "planted:Backend"


@pytest.mark.fault(
    "a replay file names a module to import, or options of its author's",
    "an error that names them, before anything is imported; --trust allows them",
)
@pytest.mark.parametrize("kind", ["replay file", "certificate"])
def test_a_file_imports_nothing_without_trust(tmp_path: Path, planted: str, kind: str) -> None:
    if kind == "certificate":
        path = tmp_path / "proof.json"
        path.write_text(
            json.dumps({"certificate": TITLE, "suite": SUITE_VERSION, "backend": planted, "opening": {}})
        )
        command, words = certificate_command.command, ("verify", str(path))
        with pytest.raises(OptionError, match="the backend planted:Backend, which may run code"):
            run_command(command, *words)
    else:
        one = replay_file(tmp_path, backend=planted)
        with pytest.raises(OptionError, match="the backend planted:Backend, which may run code"):
            conform("--repro", one)
        assert conform("cpu_ref", "--repro", one) == 0
    assert "planted" not in sys.modules and not (tmp_path / "ran").exists()


def test_options_of_a_file_need_trust_or_are_named_by_the_user(tmp_path: Path) -> None:
    one = replay_file(tmp_path, options={"weights": "copied", "rpc": "nowhere:1"})
    with pytest.raises(OptionError, match="the option weights=copied and the option rpc=nowhere:1, "):
        conform("--repro", one)
    one = replay_file(tmp_path, options={"weights": "copied"})
    assert conform("--repro", one, "--option", "weights=mapped") == 0
    assert conform("--repro", one, "--trust") == 0


def packed(data: bytes) -> str:
    return b85encode(compress(data, 9)).decode()


@pytest.mark.fault(
    "a replay file is damaged, or names what the suite does not have", "an error, exit status 2"
)
@pytest.mark.parametrize(
    "change",
    [
        {"item": 5},
        {"item": "core/neg"},
        {"item": "core/neg/-7"},
        {"item": "core/nothing/0"},
        {"item": "nowhere/neg/0"},
        {"seed": float("inf")},
        {"seed": "1"},
        {"backend": 5},
        {"options": "library=/tmp"},
        {"choices": "12"},
        {"choices": [1, -1]},
        {"choices": [0.5]},
        {"operands": [5]},
        {"operands": ["not packed"]},
        {"operands": [packed(bytes(1 << 23))]},
        {"operands": [packed(b"ab") + "a"]},
        {"variant": "0"},
        {"call": None},
    ],
    ids=str,
)
def test_a_damaged_replay_file_is_no_failure(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="is not a replay file of this suite"):
        conform("--repro", replay_file(tmp_path, **change))


@pytest.mark.parametrize("text", ["", "[]", "5", "[" * 100_000, '{"suite": []}', "\ud83d"])
def test_what_is_no_replay_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "failure.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(OptionError):
        read_file(path)


def test_operands_of_other_sizes_are_no_failure(tmp_path: Path) -> None:
    one = tmp_path / "failures"
    words = ("--size", "smoke", "--op", "tanh", "--failures", str(one))
    assert conform("broken_backends:Imprecise", *words) == 1
    path = next(path for path in one.iterdir() if json.loads(path.read_text())["operands"])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"operands": [packed(b"abc")]}))
    with pytest.raises(OptionError, match="with other operands"):
        conform("broken_backends:Imprecise", "--repro", str(path))


def test_a_call_that_the_model_does_not_make_is_no_failure(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"the model has no call like/neg/0; give --like"):
        conform("--repro", replay_file(tmp_path, item="like/neg/0"))


@pytest.mark.fault("a file that a command of the suite is to read is a pipe", "an error at once")
@pytest.mark.parametrize("option", ["--repro", "--known", "verify"])
def test_pipes_are_refused_at_once(tmp_path: Path, option: str) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    command, word = (
        (certificate_command.command, option) if option == "verify" else (conform_command, "cpu_ref")
    )
    words = (word, str(path)) if option == "verify" else (word, option, str(path))
    with pytest.raises(BackbayError, match="it is a pipe, not a regular file"):
        run_command(command, *words)


@pytest.mark.fault("a report is to be written to a device or a pipe", "an error before anything runs")
@pytest.mark.parametrize("option", ["--json", "--html", "--junit"])
def test_a_report_takes_no_place_of_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(SystemExit):
            conform("cpu_ref", "--op", "neg", option, str(path))
        assert "not a regular file; take another file" in capsys.readouterr().err
        assert not path.is_file()
