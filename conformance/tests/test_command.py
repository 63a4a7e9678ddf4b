"""`backbay conform`: options, reports, replays and certificates."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b85decode, b85encode
from pathlib import Path
from zlib import compress, decompress

import numpy as np
import pytest
from commands import conform

from backbay import BackbayError, UnknownBackendError
from backbay_conformance import Report, command, run


def test_the_command_writes_reports_and_replays_failures(tmp_path: Path) -> None:
    files = {kind: str(tmp_path / f"report.{kind}") for kind in ("json", "html", "junit")}
    words = [word for kind, path in files.items() for word in (f"--{kind}", path)]
    failures = tmp_path / "failures"
    backend = "broken_backends:Imprecise"
    status = conform(backend, "--size", "smoke", "--op", "tanh", "--failures", str(failures), *words)
    assert status == 1
    report = json.loads(Path(files["json"]).read_text())
    assert report["ok"] is False
    assert report["states"]["failing"]
    one = min(failures.iterdir())
    assert conform(backend, "--repro", str(one)) == 1
    assert conform("cpu_ref", "--repro", str(one)) == 0


def test_the_installed_command_tries_a_class_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.py").write_text("from backbay_cpu_ref import CpuRef as Mine")
    program = tmp_path / "backbay"
    program.write_text("from backbay_command import console\nconsole()\n")
    words = ["conform", "mine:Mine", "--op", "neg", "--size", "tiny"]
    done = subprocess.run(
        [sys.executable, program, *words], cwd=tmp_path / "here", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "keeps the contract" in done.stdout


def test_a_replay_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackbayError, match=r"the replay file .*none.json cannot be read: No such file"):
        conform("--repro", str(tmp_path / "none.json"))


def test_the_data_of_a_failure_are_written_as_arrays(tmp_path: Path) -> None:
    failures, data = tmp_path / "failures", tmp_path / "data"
    words = ("--size", "smoke", "--op", "tanh", "--failures", str(failures))
    conform("broken_backends:Imprecise", *words)
    one = next(path for path in failures.iterdir() if json.loads(path.read_text())["check"] == "bound")
    assert conform("--trust", "--repro", str(one), "--dump", str(data)) == 1
    x, expected, bound, got = (
        np.load(data / f"{name}0.npy") for name in ("operand", "expected", "bound", "got")
    )
    np.testing.assert_allclose(expected, np.tanh(x))
    assert (np.abs(got - expected) > bound).any()


def test_ops_and_profiles_may_be_named_one_by_one_and_with_commas(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    words = ("--op", "neg, rows", "--op", "sqr", "--profile", "core", "--profile", "quant")
    assert conform("cpu_ref", "--size", "smoke", "--json", str(file), *words) == 0
    ran = {(cell["profile"], cell["name"]) for cell in json.loads(file.read_text())["cells"]}
    assert ran == {("core", "neg"), ("core", "rows"), ("core", "sqr"), ("quant", "rows")}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--next", "--hunt", "5x"), "--next takes no --hunt"),
        (("--repro", "some.json", "--hunt", "5x", "-k", "norm"), "--repro takes no --hunt and no -k"),
        (("--repro", "some.json", "--next"), "--next takes no --repro"),
        (("--next", "--device", "CPU"), "--next takes no --device"),
        (("--hunt", "5x", "--size", "smoke"), "--hunt takes no --size"),
        (("--hunt", "5x", "--like", "model.gguf"), "--hunt takes no --like"),
        (("--hunt", "5x", "--certify"), "--hunt takes no --certify"),
        (("--certify", "--known", "known.txt", "-k", "norm"), "--certify takes no --known and no -k"),
        (("--dump", "data"), "--dump needs --repro"),
        (("--trust",), "--trust needs --repro"),
    ],
)
def test_an_option_that_another_leaves_without_effect_is_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(BackbayError, match=f"^{told}$"):
        conform("cpu_ref", *words)


@pytest.mark.parametrize(
    ("small", "told"),
    [(True, "size smoke is too small; .*; profile core is left out"), (False, "--certify takes no --op")],
)
def test_a_run_that_can_earn_no_certificate_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], small: bool, told: str
) -> None:
    words = ("--op", "neg") if not small else ("--size", "smoke", "--profile", "attention")
    with pytest.raises(BackbayError, match=told):
        conform("cpu_ref", *words, "--certify", str(tmp_path))
    assert not capsys.readouterr().out  # nothing has run
    assert not list(tmp_path.iterdir())


def test_the_report_tells_how_far_the_kernels_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    for backend, told in (("cpu_ref", "needs no other"), ("broken_backends:Three", "also needs rows, ")):
        conform(backend, "--size", "tiny", "--op", "neg", "--json", str(file))
        assert "a Llama" not in capsys.readouterr().out  # of one op nobody asks
        conform(
            backend, "--size", "tiny", "--op", "neg", "--op", "limits_and_ends_are_kept", "--json", str(file)
        )
        facts = json.loads(file.read_text())["facts"]
        assert facts["llama"].startswith(told)
        assert f"kernels: {facts['kernels']}; a Llama {facts['llama']}\n" in capsys.readouterr().out
    assert facts["kernels"] == 3


@pytest.mark.fault(
    "files of a plugin change while its certificate's run goes on",
    "no certificate, with the names of the files",
)
def test_no_certificate_is_given_for_a_mixture_of_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "mixed"
    package.mkdir()
    (package / "__init__.py").write_text("from broken_backends import Three\n")
    (package / "kernels.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    report = run("mixed:Three", size="smoke", ops=["neg"])
    edited = iter((False, True))

    def measured(*_: object) -> Report:
        if next(edited):
            (package / "kernels.py").write_text("FASTER = True\n")
        return report

    monkeypatch.setattr(command, "_measured", measured)
    told = []
    for _ in range(2):
        status = conform("mixed:Three", "--certify", str(tmp_path / "proof"))
        assert status == 1  # a smoke run is too small, too
        told.append("files of the plugin changed during the run: kernels.py" in capsys.readouterr().out)
    assert told == [False, True]


def test_an_unknown_backend_is_an_error() -> None:
    with pytest.raises(UnknownBackendError):
        conform("cpu_reff")


def failure_files(folder: Path, *words: str) -> list[Path]:
    assert conform(*words, "--size", "smoke", "--profile", "core", "--failures", str(folder)) == 1
    return sorted(folder.iterdir())


def test_a_replay_takes_the_data_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = failure_files(tmp_path / "failures", "broken_backends:Imprecise", "--op", "tanh")
    one = next(path for path in files if json.loads(path.read_text())["dtype"] == "f32")
    failed = json.loads(one.read_text())
    data = decompress(b85decode(failed["operands"][0]))
    twos = np.full(len(data) // 4, 2, np.float32)
    failed |= {"operands": [b85encode(compress(twos.tobytes())).decode()], "variant": 0}
    one.write_text(json.dumps(failed))
    capsys.readouterr()
    assert conform("--trust", "--repro", str(one), "--dump", str(tmp_path / "data")) == 1
    assert f"expected {float(np.tanh(2.0))!r}" in capsys.readouterr().out
    assert (np.load(tmp_path / "data" / "operand0.npy") == 2).all()


def test_the_data_in_a_file_are_those_that_failed(tmp_path: Path) -> None:
    """A wrong sign shows in the first data of a call, or in its other data: then the check is `replay`."""
    files = failure_files(tmp_path, "broken_backends:Unsigned", "--op", "sqrt")
    failed = [json.loads(path.read_text()) for path in files]
    assert "sign" in {failure["check"] for failure in failed}
    kinds = {"f32": np.uint32, "f16": np.uint16, "bf16": np.uint16}
    for failure in failed:
        assert failure["variant"] == (failure["check"] == "replay")
        bits = np.frombuffer(decompress(b85decode(failure["operands"][0])), kinds[failure["dtype"]])
        assert (bits << 1 == 0).any() and (bits[bits << 1 == 0] != 0).any(), "it has a negative zero"


def test_the_file_of_a_crash_holds_its_data_and_a_program(tmp_path: Path) -> None:
    for path in failure_files(tmp_path, "broken_backends:Exits", "--op", "tanh"):
        failed = json.loads(path.read_text())
        assert failed["check"] == "crash"
        assert failed["operands"] and ".tanh(ctx)" in failed["script"]


def test_a_file_of_an_older_suite_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"suite": "1.1", "item": "core/tanh/0", "choices": [0]}))
    with pytest.raises(BackbayError, match=r"written by suite 1\.1, .*; its program still runs"):
        conform("--repro", str(old))


def test_a_file_whose_item_is_another_call_now_is_refused(tmp_path: Path) -> None:
    one, *_ = failure_files(tmp_path, "broken_backends:Imprecise", "--op", "tanh")
    failed = json.loads(one.read_text())
    one.write_text(json.dumps(failed | {"call": "tanh(f32[7] contiguous)"}))
    with pytest.raises(BackbayError, match=r"not tanh\(f32\[7\] contiguous\); its program still runs"):
        conform("cpu_ref", "--repro", str(one))
