"""A watch on a worker from which the host waits for something: if the worker stands still, it is killed."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Protocol, final

from backbay.internals import Flag

BEAT = 1.0  # seconds between two looks


class Watched(Protocol):
    """A worker, and how long its host waits for a sign of life."""

    heard: int
    """Frames, or parts of large ones, that have come from it so far."""

    def ping(self) -> None:
        """Ask for a frame; a thread of the worker's own answers, whatever the others do."""

    def stood_still(self, seconds: float) -> None:
        """End the worker, which gave no sign of life for so long."""


@final
class Watch:
    """Looks at a worker once in a beat, in a thread of its own.

    `patience` gives the seconds that a worker may be silent now; None while nobody waits for it. Beats are counted, as
    no clock tells whether the host itself stood still meanwhile, stopped by Ctrl+Z for example.
    """

    def __init__(self, worker: Watched, patience: Callable[[], float | None]) -> None:
        self._worker, self._patience = worker, patience
        self._over = Flag()
        Thread(target=self._run, name="backbay watch", daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def _run(self) -> None:
        heard, silent = self._worker.heard, 0
        while not self._over.wait(BEAT):
            patience = self._patience()
            if patience is None or heard != self._worker.heard:
                heard, silent = self._worker.heard, 0
                continue
            silent += 1
            if silent * BEAT > patience:
                self._worker.stood_still(silent * BEAT)
                return
            self._worker.ping()
