"""A run that ends early: after some failures, by a signal, or at a limit of time; it still reports what has run."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from commands import conform

from backbay_conformance import Outcome, run
from backbay_conformance.report.certificate import refusals
from backbay_conformance.report.known_failures import read_known_failures
from backbay_conformance.report.terminal import ProgressBar


@pytest.mark.parametrize(("words", "failed"), [(["-x"], 1), (["--max-failures", "3"], 3)])
@pytest.mark.few(1)
def test_a_run_stops_after_some_failures(words: list[str], failed: int, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    chosen = ("--size", "smoke", "--op", "tanh,neg", "--jobs", "1", "--json", str(file))
    assert conform("broken_backends:Imprecise", *chosen, *words) == 1
    report = json.loads(file.read_text())
    assert report["counts"]["failed"] == failed
    assert report["stopped"] == f"{failed} failed"
    assert report["planned"] == 18


def test_known_failures_do_not_stop_a_run(tmp_path: Path) -> None:
    file = tmp_path / "known.txt"
    file.write_text("core/tanh/*/* coarse https://example.org/1\n")
    known = read_known_failures(file)
    report = run("broken_backends:Imprecise", ops=["tanh", "neg"], size="smoke", stop_after=1, known=known)
    assert report.ok
    assert report.counts["known"] > 1


@pytest.mark.thorough
def test_a_time_limit_ends_the_run_with_a_report(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    words = ("--profile", "core", "--time-limit", "4", "--jobs", "1", "--json", str(file))
    assert conform("cpu_ref", *words) == 124
    report = json.loads(file.read_text())
    assert not report["ok"]
    assert report["stopped"] == "the time limit of 4 s is over"


def test_a_stopped_run_proves_nothing() -> None:
    report = run("cpu_ref", ["core"], ops=["neg"], size="smoke", stop=lambda: "enough")
    assert not report.failures
    assert not report.ok
    assert report.verdict == "proves nothing: the run was stopped"
    assert "stopped after 1 of 9 calls: enough" in refusals(report)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.few(1)
def test_a_signal_ends_the_run_with_reports(number: signal.Signals, tmp_path: Path) -> None:
    """Even while a call hangs."""
    files = {kind: tmp_path / f"report.{kind}" for kind in ("json", "html", "junit")}
    words = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    chosen = ("--op", "add,tanh", "--size", "smoke", "--jobs", "1")
    program = (
        "import sys; from backbay_conformance.report.terminal import ProgressBar as Bar; "
        "step = Bar.step; Bar.step = lambda *a: (step(*a), print('step', flush=True)); "
        "from backbay.cli import main; sys.exit(main())"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program, "conform", "broken_backends:Hangs", *chosen, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "step\n"
    running.send_signal(number)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 128 + number, err
    assert f"{number.name} came" in out
    report = json.loads(files["json"].read_text())
    assert report["stopped"] == f"{number.name} came"
    assert report["counts"]["passed"] >= 1
    assert f"{number.name} came" in files["html"].read_text()
    assert ET.fromstring(files["junit"].read_text()).attrib["errors"] == "1"


def test_a_line_tells_of_progress_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("backbay_conformance.report.terminal.time.monotonic", lambda: now)
    stream = io.StringIO()
    with ProgressBar(stream) as bar:
        for second in range(35):
            now = 100.0 + second
            if second > 10 and second % 5 == 1:
                bar.step(Outcome(f"core/add/{second}"), 900)
            if second < 11:
                bar.tick()  # no call has ended
    lines = stream.getvalue().splitlines()
    assert lines == [
        "starting the backend, 10 s",
        "3/900 21 s, about 6279 s left, latest core/add/21",
        "5/900 31 s, about 5549 s left, latest core/add/31",
    ]
