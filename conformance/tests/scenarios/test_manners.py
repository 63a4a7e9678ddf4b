"""Manners: what a backend changes in its process is told, and what it keeps with each opening."""

from __future__ import annotations

import os

import pytest

from backbay_conformance import Report, run
from backbay_conformance.scenarios.process.manners import PROCESS, STATE, excessive

GROWTH = pytest.mark.skipif(not PROCESS.exists(), reason="only Linux counts descriptors and threads so")


def tried(name: str, scenario: str) -> Report:
    """A run in a worker process, which the backend may spoil."""
    return run(f"broken_manners:{name}", ops=[scenario], size="smoke")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SetsErr", "np.geterr() changed once a backend was opened"),
        ("ErrAtRun", "np.geterr() changed once a backend was used"),
        ("SeedsNumpy", "the state of np.random changed"),
        ("Seeds", "the state of random changed"),
        ("Environment", "os.environ changed once a backend was opened: OMP_NUM_THREADS was None, and is '3'"),
        ("StopsCollection", "gc.isenabled() changed"),
        ("Interrupts", "the signal handlers changed once a backend was opened: SIGINT was"),
        ("Moves", "the current directory changed"),
        ("AtClose", "the current directory changed once a backend was closed"),
        ("Locale", "the locale changed"),
        ("Umask", "the umask changed"),
        ("Output", "sys.stdin, sys.stdout and sys.stderr changed"),
        ("Deep", "sys.getrecursionlimit() changed"),
        ("Silent", "warnings.filters changed"),
        ("Path", "sys.path changed"),
        ("Logs", "the level and handlers of the root logger changed"),
        ("Prints", "standard output has 'hello\\n' once a backend was used"),
        ("PrintsInC", "standard output has 'hello from C\\n' once a backend was used"),
    ],
)
def test_a_change_of_the_process_is_told(name: str, told: str) -> None:
    report = tried(name, "the_process_stays_as_it_was")
    assert told in report.failures[0].message


@GROWTH
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Descriptors", "12 descriptors"),
        ("Threads", "12 threads"),
        ("Leaks", "MiB"),
        ("LeaksAtRun", "MiB"),
    ],
)
@pytest.mark.few(1)
def test_growth_with_each_opening_is_told(name: str, told: str) -> None:
    report = tried(name, "each_opening_gives_back_what_it_took")
    assert "each 12 openings leave" in report.failures[0].message and told in report.failures[0].message


@GROWTH
def test_a_pool_that_fills_once_is_no_leak() -> None:
    assert tried("LeaksOnce", "each_opening_gives_back_what_it_took").ok


def test_growth_counts_only_if_it_goes_on() -> None:
    few, many = ({"descriptors": n, "threads": 0, "bytes": 0} for n in (3, 30))
    assert excessive([many, many]) == ["30 descriptors"]
    assert not excessive([many, few])


def test_the_scenario_restores_what_it_marks() -> None:
    before = {name: read() for name, read in STATE.items()}
    report = run("cpu_ref", ops=["the_process_stays_as_it_was"], size="smoke")
    assert report.ok
    assert {name: read() for name, read in STATE.items()} == before
    assert "BACKBAY_CONFORMANCE_MARK" not in os.environ
