"""A backend is measured in a child process: whatever it does, the trial goes on, and says why there is no speed."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from backbay import BackendParams, CancelledError
from backbay.plugin import check_cancel
from backbay_engine.port.options import LoadOptions
from backbay_engine.trials.model_speed import TrialTask
from backbay_engine.trials.trial_process import TrialLimits, TrialOutcome, try_task

LONG = TrialLimits(300.0, 300.0)


def tried(path: Path, backend: str, limits: TrialLimits = LONG, cancel: Event | None = None) -> TrialOutcome:
    task = TrialTask(
        path,
        f"trial_backends:{backend}",
        LoadOptions(context=64, parallel=2, batch=64, params=BackendParams(num_threads=1)),
    )
    return try_task(task, limits, lambda: check_cancel(cancel))


def test_a_backend_that_works_has_a_speed(path: Path) -> None:
    outcome = tried(path, "Steady")
    assert outcome.why_not == ""
    assert outcome.speed is not None
    assert outcome.speed.rates.keys() == {"prompt", "answers"}
    assert outcome.speed.seconds > 0


@pytest.mark.fault(
    "a backend dies, hangs or fails in the trial of which backend is fastest",
    "the others are tried; `backbay doctor` shows why it has no speed",
)
@pytest.mark.parametrize(
    ("backend", "why_not", "lasts"),
    [
        ("Refusing", "no weights of this kind", True),
        ("Dying", "its process ended with status 7", False),
        ("Starving", "memory", False),
        ("Missing", "has no 'Missing'", False),
    ],
)
def test_a_backend_that_fails_says_why(path: Path, backend: str, why_not: str, lasts: bool) -> None:
    outcome = tried(path, backend)
    assert outcome.speed is None
    assert why_not in outcome.why_not
    assert outcome.lasts == lasts


def test_a_backend_that_hangs_is_stopped(path: Path) -> None:
    outcome = tried(path, "Hanging", TrialLimits(1.0, None))
    assert (outcome.speed, outcome.lasts) == (None, False)
    assert outcome.why_not.endswith("while it loaded the model")


def test_a_backend_that_is_certainly_slower_is_stopped(path: Path) -> None:
    outcome = tried(path, "Slow", TrialLimits(300.0, 0.1))
    assert (outcome.speed, outcome.lasts) == (None, True)
    assert outcome.why_not.startswith("it is slower: stopped after")


def test_cancelling_a_load_ends_its_trial(path: Path) -> None:
    cancel = Event()
    cancel.set()
    with pytest.raises(CancelledError):
        tried(path, "Hanging", cancel=cancel)
