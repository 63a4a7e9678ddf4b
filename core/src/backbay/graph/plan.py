"""The interface of a compiled graph: its runs, their times, and their cancellation."""

from __future__ import annotations

import _thread
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ..data.encoding import Bytes
from ..errors import CancelledError, OptionError
from ..types.threads import Flag
from .graph import Node


class Cancel(Protocol):
    """A flag that asks a load or a compute to stop, such as a threading.Event."""

    def is_set(self) -> bool: ...


@contextmanager
def stop_when_cancelled(
    cancel: Cancel | None, stop: Callable[[], object], poll: float = 0.002
) -> Iterator[None]:
    """While a library runs, check `cancel` every `poll` seconds in another thread; if it is set, call `stop` once."""
    if cancel is None:
        yield
        return
    done, deciding = Flag(), threading.Lock()

    def watch() -> None:
        while not done.wait(poll):
            if cancel.is_set():
                with deciding:
                    if not done.is_set():
                        stop()
                return

    # Thread.start waits for ever for a thread that finds no memory to begin (until Python 3.13).
    _thread.start_new_thread(watch, ())
    try:
        yield
    finally:
        with deciding:
            done.set()


def require_cancel(cancel: object) -> None:
    """Raise unless an argument `cancel` is None or a flag."""
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise OptionError(f"cancel must have a method is_set, such as a threading.Event has, got {cancel!r}")


def check_cancel(cancel: Cancel | None) -> None:
    if cancel is not None and cancel.is_set():
        raise CancelledError


@dataclass(frozen=True)
class Timing:
    """The time that one node of a graph took, or several that ran as one.

    `nodes` are indices in `graph.nodes`; without any, the time is of the backend's own work, such as copies between
    devices.
    """

    nodes: tuple[int, ...]
    seconds: float
    device: str
    """The id of the device that it ran on."""


Timings = Callable[[], Sequence[Timing]]
"""Tells the times of a run that was profiled."""


class Plan(ABC):
    """A compiled graph with its memory, which can run many times. The backend books the memory in its ledger."""

    nbytes: int
    """The bytes of compute memory that this plan holds, or would hold if the backend only measures."""

    @property
    def valid(self) -> bool:
        """False after another compile moved memory that this plan shares; core then compiles the graph again."""
        return True

    @abstractmethod
    def run(self, cancel: Cancel | None) -> None:
        """Run every node in order. Check `cancel` at least between nodes; if it is set, raise CancelledError.

        A cancelled run has no effect on the next run, except for its writes into leaves.
        """

    def profile(self, cancel: Cancel | None) -> Timings:
        """Run as `run` does, with the same results, and take the time of each node.

        The function that is returned tells the times. It is called once, when no more runs are to be profiled, perhaps
        after `close`. Times of one run do not overlap: their sum is at most the time of the run. Without any, the
        backend tells the times of whole runs only, which is the default.
        """
        self.run(cancel)
        return tuple

    @abstractmethod
    def read(self, node: Node) -> Bytes:
        """The bytes of an output of the latest run, in logical order; the caller must not change or keep them."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory; called once."""

    def report(self) -> list[str]:
        """The device of each node, a line per node, for people."""
        return []
