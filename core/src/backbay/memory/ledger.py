"""The ledger, which books every allocation under an entry and refuses allocations over a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeVar

from ..errors import NoMemoryError
from .host_memory import anonymous_memory, host_memory
from .report import AllocationStatus, BackendMemory, DeviceMemory, Memory, human_bytes

T = TypeVar("T")
Kind = Literal["input_weights", "weights", "cache", "graph", "host"]
WEIGHTS = ("input_weights", "weights")
ADDRESSES = 1 << 48  # bytes; no process can address so many, and a device may not tell its memory
UNCHECKED = 8 << 20  # bytes; asking the system for its free memory takes longer than booking
SPARE = 24 << 20  # bytes that libraries and Python take until a model is loaded, which nobody books


@dataclass(frozen=True)
class Entry:
    """The line of the memory report that an allocation belongs to."""

    device: str
    kind: Kind
    layer: int = 0


class Ledger:
    """Books every allocation under its entry, keeps within limits, and makes the report.

    `holds` is False for a backend that only measures: it allocates nothing, and no limit applies. `copied` says that
    weights lie in memory of their own, not in the model file. `totals` are the devices' memory sizes, `hardware_ids` their
    addresses.

    A system may grant more memory than it has, and kill the process that fills it. So memory that no file backs counts
    against `totals`, and on the host against the free memory, from the time when it is booked. Mapped memory counts
    against neither: the system can drop its pages.
    """

    def __init__(
        self,
        devices: Sequence[tuple[str, str]],
        layers: int,
        limits: Mapping[str, int],
        *,
        holds: bool,
        copied: bool = False,
        totals: Mapping[str, int] = MappingProxyType({}),
        hardware_ids: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        self.devices, self.layers, self.limits, self.holds = devices, layers, limits, holds
        self.totals, self._hardware_ids = totals, hardware_ids
        self._mapped = () if copied else WEIGHTS  # the kinds that a file backs by default
        self._sizes: dict[Entry, int] = {}
        self._anonymous: dict[Entry, int] = {}  # of these, bytes that no file backs
        self._deferred: set[Entry] = set()  # booked, and not taken yet
        self._before = anonymous_memory() if holds else 0  # of the process
        self._spare = SPARE
        self._unchecked = 0  # anonymous bytes of the host, booked since the free memory was last asked for
        self._lock = threading.RLock()  # reentrant: the garbage collector may give back during a take

    def take(self, entry: Entry, nbytes: int, allocate: Callable[[], T], *, mapped: bool | None = None) -> T:
        """Book bytes and allocate them; NoMemoryError if they exceed a limit, or `allocate` raises MemoryError.

        `mapped` says whether a file backs the memory; by default it backs weights that are not copied, and nothing else.
        """
        anonymous = not self._is_mapped(entry, mapped)
        with self._lock:
            if self.holds:
                self._check(entry, nbytes, anonymous)
            try:
                result = allocate()
            except NoMemoryError:
                raise  # of what was taken meanwhile, such as a weight that a graph is the first to read
            except MemoryError as error:
                raise self.failure(entry, nbytes, str(error) or "the system refused") from error
            self._sizes[entry] = self._sizes.get(entry, 0) + nbytes
            if anonymous:
                self._anonymous[entry] = self._anonymous.get(entry, 0) + nbytes
            return result

    def defer(self, entry: Entry) -> None:
        """Report an entry as unallocated until `hold` is called: its memory is booked early, and taken when it is first used."""
        self._deferred.add(entry)

    def hold(self, entry: Entry) -> None:
        """Report an entry as allocated, as it was before `defer`."""
        self._deferred.discard(entry)

    def check_free(self) -> None:
        """Raise NoMemoryError unless the host has free memory for all that is booked and not filled yet.

        Called before a model is loaded: until then some more must be free, from then on not.
        """
        with self._lock:
            host = {entry: size for entry, size in self._anonymous.items() if entry.device == self._host}
            if self.holds and host:
                largest = max(host, key=lambda entry: (entry.kind in WEIGHTS, host[entry]))
                self._check_free(largest, 0)
            self._spare = 0

    def foresee(self, entry: Entry, nbytes: int) -> None:
        """Raise NoMemoryError unless the host has free memory for bytes that are taken for a moment, and not booked.

        As in `take`, the system is asked once 8 MiB may be needed.
        """
        with self._lock:
            if self.holds and self._unchecked + nbytes >= UNCHECKED:
                self._check_free(entry, nbytes)

    @property
    def _host(self) -> str:
        return self.devices[0][0]

    def _check(self, entry: Entry, nbytes: int, anonymous: bool) -> None:
        """Raise NoMemoryError if `nbytes` more exceed the device's limit, its total memory, or its free memory."""
        used = {e: size for e, size in self._sizes.items() if e.device == entry.device}
        limit = self.limits.get(entry.device)
        if limit is not None and sum(used.values()) + nbytes > limit:
            left = human_bytes(limit - sum(used.values()))
            raise self.failure(entry, nbytes, f"{left} left of {human_bytes(limit)}")
        if not anonymous:
            return
        total = self.totals.get(entry.device)
        if total is not None and self._held(entry.device) + nbytes > total:
            raise self.failure(entry, nbytes, f"the device has {human_bytes(total)} in all")
        if nbytes >= ADDRESSES:
            raise self.failure(entry, nbytes, "a process cannot address so much")
        if entry.device == self._host:
            self._unchecked += nbytes
            if self._unchecked >= UNCHECKED:
                self._check_free(entry, nbytes)
                self._unchecked = 0

    def _check_free(self, entry: Entry, nbytes: int) -> None:
        """Raise NoMemoryError if the bytes to be filled, `nbytes` more among them, exceed the host's free memory."""
        held, free = self._held(self._host), host_memory().free
        filled = min(max(anonymous_memory() - self._before, 0), held)
        needed = held - filled + nbytes + self._spare
        if free is not None and needed > free:
            why = f"{human_bytes(needed)} are still to be filled, and {human_bytes(free)} are free"
            raise self.failure(entry, nbytes, why)

    def _held(self, device: str) -> int:
        """The bytes on a device that no file backs."""
        return sum(size for entry, size in self._anonymous.items() if entry.device == device)

    def give_back(self, entry: Entry, nbytes: int, *, mapped: bool | None = None) -> None:
        """Take bytes off the books, with the `mapped` that they were booked with."""
        with self._lock:
            self._sizes[entry] -= nbytes
            if not self._is_mapped(entry, mapped):
                self._anonymous[entry] -= nbytes

    def _is_mapped(self, entry: Entry, mapped: bool | None) -> bool:
        return entry.kind in self._mapped if mapped is None else mapped

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
            held = self.holds and size > 0 and entry not in self._deferred
            return Memory(size, AllocationStatus.Allocated if held else AllocationStatus.Unallocated)

        booked = [*self._sizes, *([failed] if failed else [])]
        layers = max([self.layers, *(entry.layer + 1 for entry in booked if entry.kind == "cache")])

        def device_memory(id: str, name: str) -> DeviceMemory:
            weights = tuple(memory(id, "weights", n) for n in range(layers))
            cache = tuple(memory(id, "cache", n) for n in range(layers))
            return DeviceMemory(name, id, weights, cache, memory(id, "graph"), self._hardware_ids.get(id))

        cpu, *gpus = [device_memory(id, name) for id, name in self.devices]
        return BackendMemory(memory(cpu.id, "input_weights"), cpu, tuple(gpus), memory(cpu.id, "host"))
