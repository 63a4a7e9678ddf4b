"""list, doctor and ops say what is installed, whether it works, and end with a status that programs can use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from environment import GOOD, Environment, with_gpu

from backbay import OPS
from backbay.cli import main

BAD = "import os; os._exit(3)"


def test_list_shows_what_works_on_which_devices_and_why_not(environment: Environment) -> None:
    environment.install_backend("good", with_gpu(GOOD))
    environment.install_backend("bad", BAD)
    done = environment.backbay("list")
    titles, good, bad = done.stdout.splitlines()
    assert titles.split() == ["backend", "distribution", "works", "devices", "why", "not"]
    assert good.split() == ["good", "backbay-good", "1.0", "yes", "CPU:0,", "FAST:0"]
    assert bad.split(maxsplit=4)[3:] == ["no", "it ended the process with status 3 while it was imported"]
    assert done.returncode == 0


def test_list_as_json_holds_the_same(environment: Environment) -> None:
    environment.install_backend("good", with_gpu(GOOD))
    environment.install_backend("bad", BAD)
    good, bad = json.loads(environment.backbay("list", "--json").stdout)
    assert (good["name"], good["works"], good["kernels"]) == ("good", True, ["mulmat"])
    assert [device["is_gpu"] for device in good["devices"]] == [False, True]
    assert (bad["name"], bad["distribution"], bad["version"]) == ("bad", "backbay-bad", "1.0")
    assert (bad["works"], bad["kernels"]) == (False, None)
    assert bad["reason"] == "it ended the process with status 3 while it was imported"


def test_list_fails_where_nothing_works(environment: Environment) -> None:
    done = environment.backbay("list")
    assert (done.stdout, done.returncode) == ("no backend is installed\n", 1)
    environment.install_backend("bad", BAD)
    assert environment.backbay("list").returncode == 1


def test_a_backend_that_hangs_is_given_the_time_that_is_asked_for(environment: Environment) -> None:
    environment.install_backend("slow", "import time; time.sleep(600)")
    assert "no answer in 0.5 s" in environment.backbay("list", "--timeout", "0.5").stdout


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "1e12", "long"])
def test_times_that_no_clock_has_are_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["list", "--timeout", given])
    assert "argument --timeout: must be" in capsys.readouterr().err


def test_doctor_says_which_backend_is_taken_and_why(environment: Environment) -> None:
    environment.install_backend("good", with_gpu(GOOD))
    done = environment.backbay("doctor")
    assert done.returncode == 0
    assert "good (backbay-good 1.0): works\n" in done.stdout
    assert "FAST:0 a fast one, GPU, 0000:c1:00.0\n" in done.stdout
    assert "  library  none\n" in done.stdout
    assert done.stdout.endswith("\nbackbay.open() takes good: it works, on FAST:0\n")


def test_doctor_tells_of_what_does_not_work_beside_what_does(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    environment.install_backend("bad", "print('libfast: wrong CPU', flush=True); " + BAD)
    done = environment.backbay("doctor")
    assert done.returncode == 3
    assert "bad (backbay-bad 1.0): does not work\n" in done.stdout
    assert "  output  libfast: wrong CPU\n" in done.stdout
    report = json.loads(environment.backbay("doctor", "--json").stdout)
    assert (report["choice"], report["usable"]) == ("good", True)
    assert [backend["works"] for backend in report["backends"]] == [True, False]


def test_doctor_fails_where_the_backend_that_is_asked_for_does_not_work(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    environment.install_backend("bad", BAD)
    done = environment.backbay("doctor", BACKBAY_BACKEND="bad")
    assert done.returncode == 1
    assert "backbay.open() fails: bad: BACKBAY_BACKEND asks for it, but it ended the process" in done.stdout
    unknown = environment.backbay("doctor", BACKBAY_BACKEND="god")
    assert unknown.returncode == 1
    assert "no backend 'god', which BACKBAY_BACKEND asks for" in unknown.stdout


def test_ops_shows_how_each_backend_runs_each_op(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    environment.install_backend("bad", BAD)
    done = environment.backbay("ops")
    rows = {line.split()[1].partition("(")[0]: line.split()[-2:] for line in done.stdout.splitlines()}
    assert rows["mulmat"] == ["?", "kernel"]
    assert rows["repeat_4d"] == ["?", "composite"]
    assert rows["silu"] == ["?", "unsupported"]
    assert rows["reshape"] == ["core", "core"]
    assert rows["add"] == ["?", "unsupported"]
    assert "bad cannot be loaded: it ended the process with status 3" in done.stdout
    assert done.returncode == 0


def test_ops_of_one_backend_as_json_lists_every_op(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    environment.install_backend("bad", BAD)
    listed = json.loads(environment.backbay("ops", "--json", "--backend", "good").stdout)
    assert [entry["op"] for entry in listed] == list(OPS)
    rms_norm = next(entry for entry in listed if entry["op"] == "rms_norm")
    assert rms_norm["backends"] == {"good": "unsupported"}
    assert rms_norm["composite"] is True
    assert rms_norm["doc"] == OPS["rms_norm"].doc
    wanted = "x.rms_norm(ctx, weight: Tensor | None = None, eps: float = 1e-05) -> Tensor"
    assert rms_norm["signature"] == wanted


def test_ops_of_a_backend_that_cannot_be_loaded_fails(environment: Environment) -> None:
    environment.install_backend("bad", BAD)
    assert environment.backbay("ops", "--backend", "bad").returncode == 1
    unknown = environment.backbay("ops", "--backend", "bade")
    assert unknown.returncode == 1
    assert unknown.stderr == "backbay: no backend 'bade'; installed: bad; did you mean 'bad'?\n"


def test_the_reference_of_the_ops_is_up_to_date(capsys) -> None:
    assert main(["ops", "--markdown"]) == 0
    written = Path(__file__).parents[3] / "docs" / "reference" / "ops.md"
    assert capsys.readouterr().out == written.read_text(), "run `make docs`"
