"""A compiled graph, as a backend hands it to core."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..data.encoding import Bytes
from .cancel import Cancel
from .graph import Node


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
