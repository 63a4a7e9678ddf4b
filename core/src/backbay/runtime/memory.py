"""What a model takes of which device: sizes, whether they were allocated, and what did not fit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ..errors import NoMemoryError

if TYPE_CHECKING:
    import logging

T = TypeVar("T")
INFO = 20  # as in logging, which takes long to import
Kind = Literal["input_weights", "weights", "cache", "graph"]
ANONYMOUS = ("cache", "graph")  # no file holds it


class AllocationStatus(IntEnum):
    """Whether memory was asked for, and given."""

    Unallocated = 0
    Failed = 1
    Allocated = 2


@dataclass(frozen=True)
class Memory:
    """The size of an allocation, in bytes, and what became of it. Prints as `4096A`."""

    size: int = 0
    status: AllocationStatus = AllocationStatus.Unallocated

    def __str__(self) -> str:
        return f"{self.size}{self.status.name[0]}"


@dataclass(frozen=True)
class DeviceMemory:
    """What one device holds: weights and cache by layer (the last one is the output), and the graph."""

    name: str
    id: str
    weights: tuple[Memory, ...] = ()
    cache: tuple[Memory, ...] = ()
    graph: Memory = field(default_factory=Memory)

    def entries(self) -> Iterator[Memory]:
        yield from (*self.weights, *self.cache, self.graph)

    def allocated(self) -> int:
        """Bytes that were allocated, and are held."""
        return sum(m.size for m in self.entries() if m.status is AllocationStatus.Allocated)

    def total(self) -> int:
        """Bytes asked for, allocated or not."""
        return sum(m.size for m in self.entries())


@dataclass(frozen=True)
class BackendMemory:
    """What a model takes in all. Input weights are always on the CPU."""

    input_weights: Memory
    cpu: DeviceMemory
    gpus: tuple[DeviceMemory, ...] = ()

    @property
    def devices(self) -> tuple[DeviceMemory, ...]:
        return (self.cpu, *self.gpus)

    def total(self) -> int:
        return self.input_weights.size + sum(device.total() for device in self.devices)

    def allocated(self) -> int:
        own = self.input_weights
        held = own.size if own.status is AllocationStatus.Allocated else 0
        return held + sum(device.allocated() for device in self.devices)

    def rows(self) -> list[tuple[str, str, str, Memory]]:
        """What is not empty: device, part, layers, and its size."""
        found = [(self.cpu.id, "input weights", "", self.input_weights)]
        for device in self.devices:
            for part in ("weights", "cache"):
                entries: Sequence[Memory] = getattr(device, part)
                found += [(device.id, part, str(layer), m) for layer, m in enumerate(entries)]
            found.append((device.id, "graph", "", device.graph))
        return [row for row in found if row[3].size or row[3].status is AllocationStatus.Failed]

    def table(self) -> str:
        """The report for people: a line per device and part, layers summed up, what failed on a line of its own."""
        lines = [f"{'device':<10} {'part':<14} {'layers':<10} {'size':>12}  status"]
        for device, part, layers, memory in _merged(self.rows()):
            size = human_bytes(memory.size)
            lines.append(f"{device:<10} {part:<14} {layers:<10} {size:>12}  {memory.status.name.lower()}")
        lines.append(f"{'total':<36} {human_bytes(self.total()):>12}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def as_dict(self) -> dict[str, Any]:
        """The report for programs: plain dictionaries, sizes in bytes, status by name."""
        return {**asdict(self, dict_factory=_plain), "total": self.total(), "allocated": self.allocated()}

    def log(self, logger: logging.Logger, level: int = INFO) -> None:
        """A record per non-empty entry, the parts of it as the record's `memory` attribute."""
        for device, part, layers, memory in self.rows():
            parts = {
                "device": device,
                "part": part,
                "layer": layers,
                "size": memory.size,
                "status": memory.status.name,
            }
            logger.log(level, "%s %s %s %s", device, part, layers, memory, extra={"memory": parts})


def human_bytes(size: int) -> str:
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value.name.lower() if isinstance(value, AllocationStatus) else value for key, value in items}


def _merged(rows: list[tuple[str, str, str, Memory]]) -> list[tuple[str, str, str, Memory]]:
    """Rows of one device, part and status that follow each other become one, with the range of their layers."""
    merged: list[tuple[str, str, str, Memory]] = []
    for device, part, layer, memory in rows:
        last = merged[-1] if merged else None
        if last and layer and last[:2] == (device, part) and last[3].status is memory.status:
            span = f"{last[2].partition('..')[0]}..{layer}"
            merged[-1] = (device, part, span, Memory(last[3].size + memory.size, memory.status))
        else:
            merged.append((device, part, layer, memory))
    return merged


@dataclass(frozen=True)
class Entry:
    """Which line of the report an allocation belongs to."""

    device: str
    kind: Kind
    layer: int = 0


class Ledger:
    """Books every allocation under its entry, keeps within limits, and makes the report.

    `holds` is False for a backend that only measures: then nothing is allocated and no limit applies. `totals` are
    what devices have in all: a system may promise more, and end the process once that is used. Weights are not held
    against it, as they may lie in a file.
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
        self._lock = threading.RLock()  # the garbage collector may give back in the midst of a take

    def take(self, entry: Entry, nbytes: int, allocate: Callable[[], T]) -> T:
        """Book bytes and allocate them; NoMemoryError where a limit or `allocate` (a MemoryError) refuses."""
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
        """Raise if that much more is over a limit, or more than there is."""
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
        """The error for an allocation that failed, with its entry marked."""
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
