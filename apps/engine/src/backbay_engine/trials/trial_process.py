"""The child process of a trial, seen from outside: its report, and the time that it may take."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryFile
from time import monotonic
from typing import Any

from backbay.internals import kill_helper, start_helper

from .model_speed import TrialSpeed, TrialTask

POLL = 0.1  # seconds
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from backbay_engine.trials.model_speed import main; main()"
)


@dataclass(frozen=True)
class TrialOutcome:
    """What a child found: a speed, or why there is none, and whether another one would find the same.

    measuring    seconds that it measured, after it had loaded the model
    """

    speed: TrialSpeed | None = None
    why_not: str = ""
    lasts: bool = True
    measuring: float = 0.0


@dataclass(frozen=True)
class TrialLimits:
    """Seconds that a child may take in all, and for its measurement; None: as long as it may take in all."""

    total: float
    measuring: float | None = None


def try_task(task: TrialTask, limits: TrialLimits, waiting: Callable[[], None]) -> TrialOutcome:
    """Measure a task in a child process, which is killed when its time is over, or if `waiting` raises."""
    with TemporaryFile() as noise:
        command = [sys.executable, "-c", _PROGRAM, json.dumps([str(folder) for folder in sys.path])]
        try:
            child = start_helper(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=noise)
        except OSError as error:
            return TrialOutcome(why_not=f"no process could be started: {error}", lasts=False)
        with child:
            try:
                return _heard(child, pickle.dumps(task), limits, waiting)
            finally:
                kill_helper(child)


def _heard(
    child: subprocess.Popen[bytes], task: bytes, limits: TrialLimits, waiting: Callable[[], None]
) -> TrialOutcome:
    given: bytes | None = task
    begun, loaded = monotonic(), None
    while True:
        try:
            said = child.communicate(given, POLL)[0]
            return _outcome(said, child.returncode, 0.0 if loaded is None else monotonic() - loaded)
        except subprocess.TimeoutExpired as late:
            given = None
            if loaded is None and b"\n" in (late.output or b""):
                loaded = monotonic()
        waiting()
        now = monotonic()
        if loaded is not None and limits.measuring is not None and now - loaded > limits.measuring:
            return TrialOutcome(why_not=f"it is slower: stopped after {now - loaded:.1f} s")
        if now - begun > limits.total:
            stage = "loaded the model" if loaded is None else "was measured"
            return TrialOutcome(why_not=f"stopped after {now - begun:.0f} s, while it {stage}", lasts=False)


def _outcome(said: bytes, status: int, measuring: float) -> TrialOutcome:
    """The outcome that a child's last line tells."""
    lines = said.decode(errors="replace").splitlines()
    try:
        told: dict[str, Any] = json.loads(lines[-1])
        if "speed" in told:
            return TrialOutcome(TrialSpeed(**told["speed"]), measuring=measuring)
        return TrialOutcome(why_not=str(told["why_not"]), lasts=bool(told["lasts"]))
    except (IndexError, KeyError, TypeError, ValueError):
        return TrialOutcome(why_not=f"its process ended with status {status}", lasts=False)
