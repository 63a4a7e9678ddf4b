"""Kept contexts: what was traced for a shape is computed again for the next data of this shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar, final

from backbay import Backend
from backbay.plugin import Entry

NODE = 768  # bytes that core and a backend take for a traced node beside its data, measured


class ContextHolder(Protocol):
    """A traced context, or several that belong together."""

    def close(self) -> None: ...


K = TypeVar("K", bound=ContextHolder)
R = TypeVar("R")


@final
class ContextCache(Generic[K]):
    """The contexts of the shapes that were used last, on one backend.

    The least recently used is dropped beyond `limit` contexts, beyond the reserved memory, and where memory is short.
    """

    def __init__(self, backend: Backend, limit: int) -> None:
        self._backend, self._limit = backend, limit
        self._kept: OrderedDict[Hashable, K] = OrderedDict()
        self.reserved: int | None = None  # bytes
        self._booked = 0  # of the host's share

    def get(self, key: Hashable) -> K | None:
        """What was traced for a shape, which is the most recently used one now; None if it was not kept."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def add(self, key: Hashable, trace: Callable[[], K]) -> K:
        """Trace a shape that was not kept, and keep it."""
        while len(self._kept) >= self._limit:
            self._drop_oldest()
        traced = self._kept[key] = trace()
        return traced

    def reserve(self, nodes: int, host: int = 0) -> None:
        """Book the host's share of contexts with up to so many nodes, and other bytes; keep within what is taken now."""
        ledger = self._backend.ledger
        more = max(self._limit * nodes * NODE + host - self._booked, 0)
        ledger.take(Entry(ledger.devices[0][0], "host"), more, lambda: None)
        self._booked += more
        self.reserved = self._taken()

    def keep_within(self) -> None:
        """Drop contexts beyond the reserved memory; if that does not suffice, what they share has grown, and counts as reserved."""
        if self.reserved is None:
            return
        most = self._taken()
        while len(self._kept) > 1 and self._taken() > self.reserved:
            self._drop_oldest()
        if self._taken() > self.reserved:
            self.reserved = most

    def run(self, work: Callable[[], R]) -> R:
        """The result of work; if memory is short, drop contexts and try again: the largest shape fits alone."""
        spare = len(self._kept)
        while True:
            try:
                return work()
            except MemoryError as error:
                if not spare:
                    self._backend.refuse_memory(error)
                spare -= 1
                self._drop_oldest()

    def close(self) -> None:
        """Free all contexts."""
        while self._kept:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        if self._kept:
            self._kept.popitem(last=False)[1].close()

    def _taken(self) -> int:
        return self._backend.memory().total()
