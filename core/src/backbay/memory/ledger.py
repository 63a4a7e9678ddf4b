"""The ledger: it books every allocation under an entry, and refuses allocations over a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeVar

from ..errors import NoMemoryError
from .report import AllocationStatus, BackendMemory, DeviceMemory, Memory, human_bytes

T = TypeVar("T")
Kind = Literal["input_weights", "weights", "cache", "graph"]
ANONYMOUS = ("cache", "graph")  # memory that no file backs


@dataclass(frozen=True)
class Entry:
    """The line of the memory report that an allocation belongs to."""

    device: str
    kind: Kind
    layer: int = 0


class Ledger:
    """Books every allocation under its entry, keeps within limits, and makes the report.

    `holds` is False for a backend that only measures: it allocates nothing, and no limit applies. `totals` are the
    devices' memory sizes: a system may grant more memory than it has, and kill the process that uses it. Weights do
    not count against `totals`, as a file may back them.
    """

    def __init__(
        self,
        devices: Sequence[tuple[str, str]],
        layers: int,
        limits: Mapping[str, int],
        *,
        holds: bool,
        totals: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.devices, self.layers, self.limits, self.holds = devices, layers, limits, holds
        self.totals = totals
        self._sizes: dict[Entry, int] = {}
        self._lock = threading.RLock()  # reentrant: the garbage collector may give back during a take

    def take(self, entry: Entry, nbytes: int, allocate: Callable[[], T]) -> T:
        """Book bytes and allocate them; NoMemoryError if they exceed a limit, or `allocate` raises MemoryError."""
        with self._lock:
            if self.holds:
                self._check(entry, nbytes)
            try:
                result = allocate()
            except MemoryError as error:
                raise self.failure(entry, nbytes, str(error) or "the system refused") from error
            self._sizes[entry] = self._sizes.get(entry, 0) + nbytes
            return result

    def _check(self, entry: Entry, nbytes: int) -> None:
        """Raise NoMemoryError if `nbytes` more exceed the device's limit or its total memory."""
        used = {e: size for e, size in self._sizes.items() if e.device == entry.device}
        limit = self.limits.get(entry.device)
        if limit is not None and sum(used.values()) + nbytes > limit:
            left = human_bytes(limit - sum(used.values()))
            raise self.failure(entry, nbytes, f"{left} left of {human_bytes(limit)}")
        total = self.totals.get(entry.device)
        if total is not None and entry.kind in ANONYMOUS:
            held = sum(size for e, size in used.items() if e.kind in ANONYMOUS)
            if held + nbytes > total:
                raise self.failure(entry, nbytes, f"the device has {human_bytes(total)} in all")

    def give_back(self, entry: Entry, nbytes: int) -> None:
        with self._lock:
            self._sizes[entry] -= nbytes

    def report(self) -> BackendMemory:
        with self._lock:
            return self._report(None, 0)

    def failure(self, entry: Entry, nbytes: int, why: str) -> NoMemoryError:
        """The error for a failed allocation; its entry is marked Failed in the report."""
        layer = f" of layer {entry.layer}" if entry.kind in ("weights", "cache") else ""
        what = f"{entry.kind.replace('_', ' ')}{layer} on {entry.device}"
        size = f"{human_bytes(nbytes)} of " if nbytes else ""
        return NoMemoryError(f"no memory for {size}{what}: {why}", self._report(entry, nbytes))

    def _report(self, failed: Entry | None, nbytes: int) -> BackendMemory:
        def memory(device: str, kind: Kind, layer: int = 0) -> Memory:
            entry = Entry(device, kind, layer)
            size = self._sizes.get(entry, 0)
            if entry == failed:
                return Memory(size + nbytes, AllocationStatus.Failed)
            held = self.holds and size > 0
            return Memory(size, AllocationStatus.Allocated if held else AllocationStatus.Unallocated)

        booked = [*self._sizes, *([failed] if failed else [])]
        layers = max([self.layers, *(entry.layer + 1 for entry in booked if entry.kind == "cache")])

        def device_memory(id: str, name: str) -> DeviceMemory:
            weights = tuple(memory(id, "weights", n) for n in range(layers))
            cache = tuple(memory(id, "cache", n) for n in range(layers))
            return DeviceMemory(name, id, weights, cache, memory(id, "graph"))

        cpu, *gpus = [device_memory(id, name) for id, name in self.devices]
        return BackendMemory(memory(cpu.id, "input_weights"), cpu, tuple(gpus))
