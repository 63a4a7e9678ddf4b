"""The first load of a worker's model, for which its host waits."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import TypeAlias, final

from backbay.plugin import Cancel, Progress

from ..wire.frames import Kind
from ..wire.opened import Opened
from .process import WorkerProcess

POLL = 0.02  # seconds between two looks at the flag that cancels a load
Said: TypeAlias = Opened | float | BaseException | None
"""What a worker says while it loads; None at the end."""


@final
class Loading:
    """Waits in the caller's thread, to which the worker's thread tells what happens."""

    def __init__(self) -> None:
        self._said: SimpleQueue[Said] = SimpleQueue()
        self.stops = False
        """Whether the worker was asked to give the load up."""
        self.over = False

    def tell(self, said: Said) -> None:
        """Hand on what the worker says; nothing once the load is over."""
        if not self.over:
            self._said.put(said)

    def wait(self, worker: WorkerProcess, progress: Progress | None, cancel: Cancel | None) -> Opened:
        """Wait until the model is loaded, and report progress; raises the error of the load."""
        opened: Opened | None = None
        while True:
            if cancel is not None and not self.stops and cancel.is_set():
                worker.send(Kind.STOP_LOADING)
                self.stops = True
            try:
                said = self._said.get(timeout=None if cancel is None or self.stops else POLL)
            except Empty:
                continue
            if said is None:
                assert opened is not None  # it comes first
                self.over, self.stops = True, False
                return opened
            if isinstance(said, BaseException):
                raise said
            if isinstance(said, Opened):
                opened = said
            elif progress is not None:
                progress(said)
