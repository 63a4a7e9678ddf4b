"""A call hangs if it takes its time, not if the machine gives it none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backbay_conformance.runner.workers import process_time_limit
from backbay_conformance.runner.workers.process_time_limit import ProcessTimeLimit, waited

CHILDREN = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


class Clock:
    """The time, and the seconds that two threads of a process have waited for a processor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.held = 0.0, {"1": 0.0, "2": 5.0}
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(process_time_limit, "waited", lambda process: dict(self.held))

    def pass_by(self, seconds: float, *, held: float = 0.0) -> None:
        self.now += seconds
        self.held["1"] += held


def after_the_first_look(clock: Clock, seconds: float = 2.0) -> ProcessTimeLimit:
    patience = ProcessTimeLimit(0, seconds)
    assert patience.pause == process_time_limit.FIRST_LOOK
    clock.pass_by(process_time_limit.FIRST_LOOK)
    assert not patience.over
    return patience


def looks(clock: Clock, *, held: float) -> int:
    """The number of looks, half a second apart, until a patience of 2 seconds is over; at most 100."""
    patience = after_the_first_look(clock)
    for count in range(1, 101):
        clock.pass_by(0.5, held=held)
        if patience.over:
            return count
    return 101


def test_a_process_that_runs_or_sleeps_uses_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(Clock(monkeypatch), held=0.0) == 4


def test_a_process_that_gets_half_of_a_processor_has_twice_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(Clock(monkeypatch), held=0.25) == 8


def test_a_process_that_gets_no_processor_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(Clock(monkeypatch), held=0.5) == 101


def test_a_pause_of_the_machine_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    patience = after_the_first_look(clock)
    clock.pass_by(3600.0)
    assert not patience.over
    assert 0 < patience.pause <= process_time_limit.LOOK


def test_threads_that_begin_and_end_are_counted_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    patience = after_the_first_look(clock, 1.0)
    del clock.held["2"]
    clock.held["3"] = 0.5
    clock.pass_by(0.5)
    assert not patience.over
    clock.pass_by(1.0)
    assert patience.over


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell")
def test_the_system_tells_how_long_this_process_waited() -> None:
    assert waited(os.getpid())
    assert all(seconds >= 0 for seconds in waited(os.getpid()).values())
    assert waited(2**22 + 1) == {}


@pytest.mark.skipif(not CHILDREN.exists(), reason="only Linux tells a process's children")
def test_what_a_child_process_waited_counts_too() -> None:
    program = "import time; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert str(child.pid) in waited(os.getpid())
        finally:
            child.kill()
