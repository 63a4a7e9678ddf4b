"""The memory report: sizes by device, part and layer, and whether each was allocated or failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

INFO = 20  # logging.INFO; importing logging takes long


class AllocationStatus(IntEnum):
    """Whether memory was only planned, was refused, or is held."""

    Unallocated = 0
    Failed = 1
    Allocated = 2


@dataclass(frozen=True)
class Memory:
    """The size of an allocation in bytes, and its status. Prints as `4096A`."""

    size: int = 0
    status: AllocationStatus = AllocationStatus.Unallocated

    def __str__(self) -> str:
        return f"{self.size}{self.status.name[0]}"


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device: weights and cache by layer (the last layer is the output), and the graph.

    `hardware_id` is that of its DeviceInfo.
    """

    name: str
    id: str
    weights: tuple[Memory, ...] = ()
    cache: tuple[Memory, ...] = ()
    graph: Memory = field(default_factory=Memory)
    hardware_id: str | None = None

    def entries(self) -> Iterator[Memory]:
        yield from (*self.weights, *self.cache, self.graph)

    def allocated(self) -> int:
        return sum(m.size for m in self.entries() if m.status is AllocationStatus.Allocated)

    def total(self) -> int:
        """The bytes of all entries, allocated or not."""
        return sum(m.size for m in self.entries())


@dataclass(frozen=True)
class BackendMemory:
    """The memory of a model on all devices. Input weights are always on the CPU.

    `host` is memory of the program around the backend: the tokenizer, masks, records of sequences, working memory.
    `encoder` is the memory of the model's encoder of pictures or sound, `ear` that of an encoder of sound beside one of
    pictures, and `draft` that of the small model that guesses its tokens; each has a backend of its own.
    """

    input_weights: Memory
    cpu: DeviceMemory
    gpus: tuple[DeviceMemory, ...] = ()
    host: Memory = field(default_factory=Memory)
    encoder: BackendMemory | None = None
    ear: BackendMemory | None = None
    draft: BackendMemory | None = None

    @property
    def companions(self) -> dict[str, BackendMemory]:
        """The models beside this one, by their field."""
        found = {"encoder": self.encoder, "ear": self.ear, "draft": self.draft}
        return {name: memory for name, memory in found.items() if memory is not None}

    @property
    def devices(self) -> tuple[DeviceMemory, ...]:
        return (self.cpu, *self.gpus)

    def total(self) -> int:
        return sum(memory.size for *_, memory in self.rows())

    def allocated(self) -> int:
        return sum(memory.size for *_, memory in self.rows() if memory.status is AllocationStatus.Allocated)

    def rows(self) -> list[tuple[str, str, str, Memory]]:
        """Device, part, layer and size of each entry that is not empty."""
        found = [(self.cpu.id, "input weights", "", self.input_weights)]
        for device in self.devices:
            for part in ("weights", "cache"):
                entries: Sequence[Memory] = getattr(device, part)
                found += [(device.id, part, str(layer), m) for layer, m in enumerate(entries)]
            found.append((device.id, "graph", "", device.graph))
        found.append((self.cpu.id, "host", "", self.host))
        for name, companion in self.companions.items():
            found += [(device, f"{name} {part}", at, m) for device, part, at, m in companion.rows()]
        return [row for row in found if row[3].size or row[3].status is AllocationStatus.Failed]

    def table(self) -> str:
        """The report for people: a line per device and part, layers summed up; a failed entry has its own line."""
        wide = 21 if self.companions else 14
        lines = [f"{'device':<10} {'part':<{wide}} {'layers':<10} {'size':>12}  status"]
        for device, part, layers, memory in _merged(self.rows()):
            size = human_bytes(memory.size)
            lines.append(f"{device:<10} {part:<{wide}} {layers:<10} {size:>12}  {memory.status.name.lower()}")
        lines.append(f"{'total':<{wide + 22}} {human_bytes(self.total()):>12}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def as_dict(self) -> dict[str, Any]:
        """The report for programs: plain dictionaries, sizes in bytes, the status by its name."""

        def plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
            return {
                key: value.name.lower() if isinstance(value, AllocationStatus) else value
                for key, value in items
            }

        own = asdict(self, dict_factory=plain)
        companions = {name: companion.as_dict() for name, companion in self.companions.items()}
        return {**own, **companions, "total": self.total(), "allocated": self.allocated()}

    def log(self, logger: logging.Logger, level: int = INFO) -> None:
        """Log the lines of the table, one record each; the record's `memory` attribute holds its fields."""
        reports = (*self.companions.values(), self)
        hardware = {device.id: device.hardware_id for report in reports for device in report.devices}
        for device, part, layers, memory in _merged(self.rows()):
            status = memory.status.name.lower()
            fields = {"device": device, "part": part, "layers": layers, "size": memory.size, "status": status}
            fields["hardware_id"] = hardware.get(device)
            where = f"{part} of layers {layers}" if layers else part
            told = f"{device}: {human_bytes(memory.size)} of {where}, {status}"
            logger.log(level, "%s", told, extra={"memory": fields})
        logger.log(level, "total: %s", human_bytes(self.total()), extra={"memory": {"total": self.total()}})


def human_bytes(size: int) -> str:
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def _merged(rows: list[tuple[str, str, str, Memory]]) -> list[tuple[str, str, str, Memory]]:
    """Merge consecutive rows of the same device, part and status into one row, with the range of their layers."""
    merged: list[tuple[str, str, str, Memory]] = []
    for device, part, layer, memory in rows:
        last = merged[-1] if merged else None
        if last and layer and last[:2] == (device, part) and last[3].status is memory.status:
            span = f"{last[2].partition('..')[0]}..{layer}"
            merged[-1] = (device, part, span, Memory(last[3].size + memory.size, memory.status))
        else:
            merged.append((device, part, layer, memory))
    return merged
