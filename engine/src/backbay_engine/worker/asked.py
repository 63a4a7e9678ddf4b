"""Requests that a worker has not answered yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from numpy.typing import NDArray

from ..runner.handle import Handle
from .process import WorkerProcess
from .wire import Kind

ATTEMPTS = 2  # what a dying worker never began goes to the next worker, once


@final
@dataclass(eq=False)
class Asked:
    """A request that is not over."""

    payload: bytes
    handle: Handle[Any]
    worker: WorkerProcess | None = None
    """The worker that it was sent to; None while no worker is ready."""
    attempts: int = 0
    begun: bool = False
    cancelled: bool = False
    array: NDArray[Any] | None = None
    """The result, if it is an array, of which `filled` bytes have come."""
    filled: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether it ends with its worker."""
        return self.begun or self.attempts >= ATTEMPTS


def give(worker: WorkerProcess, number: int, asked: Asked) -> None:
    """Send a request to a worker that is ready; the caller holds the engine's lock."""
    asked.worker = worker
    asked.attempts += 1
    worker.send(Kind.REQUEST, number, asked.payload)
    if asked.cancelled:
        worker.send(Kind.CANCEL, number)
