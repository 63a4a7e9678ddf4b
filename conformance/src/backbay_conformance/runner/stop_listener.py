"""Reasons to end a run early: a signal, or a limit of time."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any, Self

TIMED_OUT = 124  # the exit status of a run that a limit of time has stopped, as of the program `timeout`


class StopListener:
    """Tells a run to stop: at SIGINT, SIGTERM, or a limit of time; a second signal ends the process at once."""

    def __init__(self, seconds: float | None = None) -> None:
        self._deadline = time.monotonic() + seconds if seconds is not None else None
        self._seconds, self._told = seconds, ""
        self._signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def reason(self) -> str:
        """Why the run should end now; empty if it may go on. The first reason stays."""
        if not self._told and self._signal is not None:
            self._told = f"{self._signal.name} came"
        if not self._told and self._deadline is not None and time.monotonic() >= self._deadline:
            self._told = f"the time limit of {self._seconds:g} s is over"
        return self._told

    @property
    def status(self) -> int:
        """The exit status of a run that was stopped; 0 if it was not."""
        if not self._told:
            return 0
        return 128 + self._signal if self._signal is not None else TIMED_OUT

    def __enter__(self) -> Self:
        for one in (signal.SIGINT, signal.SIGTERM):
            self._before[one] = signal.signal(one, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)
        self._before.clear()
