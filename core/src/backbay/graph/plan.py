"""The interface of a compiled graph."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..data.encoding import Bytes
from .cancel import Cancel
from .graph import Node
from .timing import Timings


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
