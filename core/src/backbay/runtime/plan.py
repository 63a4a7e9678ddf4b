"""What a backend hands to core: buffers that hold data, and plans that run."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..data.encoding import Bytes
from ..errors import CancelledError

if TYPE_CHECKING:
    from ..graph.graph import Node


class Cancel(Protocol):
    """What can ask a load or a compute to stop: a threading.Event is one."""

    def is_set(self) -> bool: ...


class Buffer(ABC):
    """Memory of a leaf or a weight, wherever the backend put it."""

    nbytes: int

    @abstractmethod
    def read(self) -> Bytes:
        """All bytes, on the host; the caller neither changes nor keeps them."""

    @abstractmethod
    def write(self, data: Bytes) -> None:
        """Replace all bytes."""

    def zero(self) -> None:
        """Fill all bytes with zero."""
        self.write(np.zeros(self.nbytes, np.uint8))

    @abstractmethod
    def close(self) -> None:
        """Free the memory; called once."""


class Plan(ABC):
    """A compiled graph, with its memory, ready to run again and again; the backend books that in its ledger."""

    nbytes: int
    """Bytes of compute memory that this plan holds, or would hold where nothing is allocated."""

    @property
    def valid(self) -> bool:
        """False once another compile moved memory that this plan shares; core then compiles it anew."""
        return True

    @abstractmethod
    def run(self, cancel: Cancel | None) -> None:
        """Run every node in order. A set `cancel`, looked at between nodes at least, ends it with CancelledError.

        The next run is as if that one had not been, but for what it wrote into leaves.
        """

    @abstractmethod
    def read(self, node: Node) -> Bytes:
        """An output of the latest run, in logical order; the caller neither changes nor keeps it."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory; called once."""

    def report(self) -> list[str]:
        """What ran where, a line per node, for people."""
        return []


Progress = Callable[[float], None]


@contextmanager
def stop_when_cancelled(
    cancel: Cancel | None, stop: Callable[[], object], poll: float = 0.002
) -> Iterator[None]:
    """While a library runs, look at `cancel` every `poll` seconds, and call `stop` once it is set."""
    if cancel is None:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        while not done.wait(poll):
            if cancel.is_set():
                stop()
                return

    watcher = threading.Thread(target=watch, name="backbay-cancel", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def check_cancel(cancel: Cancel | None) -> None:
    if cancel is not None and cancel.is_set():
        raise CancelledError("cancelled; what was written so far is invalid")
