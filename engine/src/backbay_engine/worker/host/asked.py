"""Requests that a worker has not answered yet."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ...runner.requests.answer import TokenStep
from ...runner.requests.handle import Handle
from ..wire.failures import unpacked
from ..wire.frames import Frame, Kind
from .process import WorkerProcess
from .resuming import Resuming

ATTEMPTS = 2  # workers that a request is sent to, if the first one dies without having begun with it


@final
@dataclass(eq=False)
class Asked:
    """A request that is not over."""

    payload: bytes
    handle: Handle[Any]
    worker: WorkerProcess | None = None
    """The worker that it was sent to; None while no worker is ready."""
    begin_by: float = math.inf
    """A time of `time.monotonic`."""
    resuming: Resuming | None = None
    """How it goes on if its worker dies; None: it ends with its worker."""
    attempts: int = 0
    begun: bool = False
    cancelled: bool = False
    array: NDArray[Any] | None = None
    """The result, if it is an array, of which `filled` bytes have come."""
    filled: int = 0

    def survives(self, *, loaded: bool) -> bool:
        """Make it ready for the next worker, as its own has died; False if it ends with its worker."""
        if loaded and not self.begun:
            return self.attempts < ATTEMPTS
        if self.resuming is None or not self.resuming.again():
            return False
        self.payload, self.begun, self.attempts = pickle.dumps(self.resuming.request), False, 0
        return True

    def take(self, frame: Frame, over: Callable[[], None]) -> None:
        """Take a part of the answer; `over` is called before the end is told."""
        if frame.kind is Kind.STEP:
            step = TokenStep(*pickle.loads(frame.payload))  # noqa: S301  our own worker wrote it
            if self.resuming is None or self.resuming.note(step):
                self.handle.emit(step)
        elif frame.kind is Kind.BEGUN:
            self.begun = True
        elif frame.kind is Kind.RESULT:
            over()
            result = pickle.loads(frame.payload)  # noqa: S301
            self.handle.succeed(result if self.resuming is None else self.resuming.whole(result))
        elif frame.kind is Kind.FAILED:
            over()
            self.handle.fail(unpacked(frame.payload))
        elif frame.kind is Kind.ARRAY:
            shape, dtype = pickle.loads(frame.payload)  # noqa: S301
            self.array, self.filled = np.empty(shape, dtype), 0
        elif frame.kind is Kind.BYTES and self.array is not None:
            begin, self.filled = self.filled, self.filled + len(frame.payload)
            self.array.reshape(-1).view(np.uint8)[begin : self.filled] = np.frombuffer(
                frame.payload, np.uint8
            )
        if self.array is not None and self.filled == self.array.nbytes:
            over()
            self.handle.succeed(self.array)


def give(worker: WorkerProcess, number: int, asked: Asked) -> None:
    """Send a request to a worker that is ready; the caller holds the port's lock."""
    asked.worker = worker
    asked.attempts += 1
    worker.send(Kind.REQUEST, number, asked.payload)
    if asked.cancelled:
        worker.send(Kind.CANCEL, number)
