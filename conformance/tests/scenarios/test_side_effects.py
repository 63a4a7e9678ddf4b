"""Side effects: what a backend changes in its process is told, and what it keeps with each opening."""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from backbay_conformance import Report, run
from backbay_conformance.checks.process_state import STATE, umask
from backbay_conformance.scenarios.process.side_effects import PROCESS, excessive

GROWTH = pytest.mark.skipif(not PROCESS.exists(), reason="only Linux counts descriptors and threads so")


@pytest.fixture
def restored() -> Iterator[None]:
    """A process that is as it was after the test."""
    before = {name: part.read() for name, part in STATE.items()}
    with ExitStack() as undo:
        for kept in (np.errstate(), warnings.catch_warnings(), chdir(Path.cwd()), patch.dict(os.environ)):
            undo.enter_context(kept)
        undo.enter_context(patch.multiple(sys, path=[*sys.path], stdout=sys.stdout))
        undo.enter_context(patch.multiple(logging.root, handlers=[*logging.root.handlers]))
        undo.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 a backend may use it
        undo.callback(random.setstate, random.getstate())
        undo.callback(gc.enable)
        undo.callback(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        undo.callback(locale.setlocale, locale.LC_NUMERIC, locale.setlocale(locale.LC_NUMERIC))
        undo.callback(os.umask, umask())
        undo.callback(sys.setrecursionlimit, sys.getrecursionlimit())
        yield
    assert {name: part.read() for name, part in STATE.items()} == before


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SetsErr", "np.geterr() changed once a backend was opened"),
        ("ErrAtRun", "np.geterr() changed once a backend was used"),
        ("SeedsNumpy", "the state of np.random changed"),
        ("Seeds", "the state of random changed"),
        ("Environment", "os.environ changed once a backend was opened: OMP_NUM_THREADS was None, and is '3'"),
        ("StopsCollection", "gc.isenabled() changed"),
        ("LeavesCollectionOff", "gc.isenabled() changed once a backend was cancelled"),
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
        ("Prints", "standard output has 'hello\\nhello\\n' once a backend was used"),
        ("PrintsInC", "standard output has 'hello from C\\nhello from C\\n' once a backend was used"),
    ],
)
@pytest.mark.usefixtures("restored")
def test_a_change_of_the_process_is_told(name: str, told: str) -> None:
    report = run(f"side_effect_backends:{name}", ops=["the_process_stays_as_it_was"], size="smoke")
    assert told in report.failures[0].message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ErrAtRun", "np.geterr() changed: divide was"),
        ("Umask", "the umask changed: it was"),
        ("Prints", "standard output has b'hello\\n"),
        ("PrintsInC", "standard output has b'hello from C\\n"),
    ],
)
def test_the_process_is_watched_around_each_call(name: str, told: str) -> None:
    failures = run(f"side_effect_backends:{name}", ops=["neg"], size="smoke", in_process=False).failures
    assert {failure.check for failure in failures} == {"process"}
    assert all(told in failure.message for failure in failures)


def test_what_a_call_has_changed_is_set_again() -> None:
    before = {name: part.read() for name, part in STATE.items()}
    assert run("side_effect_backends:ErrAtRun", ops=["neg"], size="smoke").failures
    assert {name: part.read() for name, part in STATE.items()} == before


def grown(name: str) -> Report:
    """A run in a worker process, whose memory the backend keeps."""
    scenario = "each_opening_gives_back_what_it_took"
    return run(f"side_effect_backends:{name}", ops=[scenario], size="smoke", in_process=False)


@GROWTH
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Descriptors", "12 descriptors"),
        ("Threads", "12 threads"),
        ("Leaks", "MiB"),
        ("LeaksAtRun", "MiB"),
        ("LeaksShared", "MiB"),
        ("Litters", "12 files"),
    ],
)
@pytest.mark.few(1)
def test_growth_with_each_opening_is_told(name: str, told: str) -> None:
    report = grown(name)
    assert "each 12 openings leave" in report.failures[0].message and told in report.failures[0].message


@GROWTH
def test_a_pool_that_fills_once_is_no_leak() -> None:
    assert grown("LeaksOnce").ok


@GROWTH
def test_a_pool_of_closed_leaves_is_told() -> None:
    scenario = "closed_leaves_of_many_sizes_leave_no_memory"
    failures = run(
        "side_effect_backends:PoolsBySize", ops=[scenario], size="smoke", in_process=False
    ).failures
    assert "64 closed leaves of 1.0 MiB and more left" in failures[0].message


def test_growth_counts_only_if_it_goes_on() -> None:
    few, many = ({"descriptors": n, "threads": 0, "files": 0, "bytes": 0} for n in (3, 30))
    assert excessive([many, many]) == ["30 descriptors"]
    assert not excessive([many, few])


def test_the_scenario_restores_what_it_marks() -> None:
    before = {name: part.read() for name, part in STATE.items()}
    report = run("cpu_ref", ops=["the_process_stays_as_it_was"], size="smoke")
    assert report.ok
    assert {name: part.read() for name, part in STATE.items()} == before
    assert "BACKBAY_CONFORMANCE_MARK" not in os.environ
