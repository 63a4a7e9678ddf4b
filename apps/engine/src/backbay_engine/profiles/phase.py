"""Runs of one kind, such as steps after a past, and their times by op, layer and device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from backbay.internals import ProfiledRun
from backbay.plugin import Node, Timing

from . import op_costs
from .op_costs import PeakRates

UNTOLD = "all ops together"
OTHER = "no op of the graph"


@dataclass
class ProfileLine:
    """A line of a table; all numbers are of one step.

    `least` are the seconds that the work takes at least on the host, of `on_host` seconds that were measured there.
    """

    calls: float = 0.0
    seconds: float = 0.0
    nbytes: float = 0.0
    products: float = 0.0
    least: float = 0.0
    on_host: float = 0.0

    def add(self, part: ProfileLine, steps: int) -> None:
        """Add a part of so many steps."""
        for name, value in vars(part).items():
            setattr(self, name, getattr(self, name) + value / steps)

    @property
    def wall_share(self) -> float | None:
        """The share of the time that the work needs at least; None where nothing ran on the host."""
        return self.least / self.on_host if self.on_host else None


@dataclass(frozen=True)
class ProfilePhase:
    """Steps of one kind. `usual` is the time of a step that was not profiled, `step` of one that was.

    `backend` is the part of `step` in which the backend ran, and `told` the part of that which its ops add up to.
    """

    name: str
    steps: int
    usual: float
    step: float
    backend: float
    told: float
    ops: dict[str, ProfileLine] = field(default_factory=dict)
    layers: dict[str, ProfileLine] = field(default_factory=dict)
    devices: dict[str, ProfileLine] = field(default_factory=dict)

    @property
    def tells_ops(self) -> bool:
        """Whether the backend tells times of its ops."""
        return UNTOLD not in self.ops


@dataclass(frozen=True)
class ProfileRuns:
    """Runs that make up a number of steps, and the mean seconds of a step."""

    steps: int
    step: float
    runs: Sequence[ProfiledRun]


@dataclass(frozen=True)
class ProfileSetup:
    """What the lines of a phase depend on beside its runs: the model's blocks, the id of the host, and its rates."""

    blocks: int
    host: str
    walls: PeakRates


def phase_of(name: str, usual: float, measured: ProfileRuns, machine: ProfileSetup) -> ProfilePhase:
    steps, runs = measured.steps, measured.runs
    told = sum(timing.seconds for run in runs for timing in run.timings)
    backend = sum(run.seconds for run in runs)
    phase = ProfilePhase(name, steps, usual, measured.step, backend / steps, told / steps)
    for run in runs:
        seen: set[int] = set()
        for timing in run.timings or (_whole(run, machine.host),):
            nodes = [run.graph.nodes[index] for index in timing.nodes]
            part = _part(timing, [node for node in nodes if node.index not in seen], machine)
            seen.update(timing.nodes)  # a node may have several times, and is counted once
            layers = [op_costs.layer_label(node, machine.blocks) for node in nodes]
            for lines, title in (
                (phase.ops, _title(map(op_costs.op_label, nodes)) if run.timings else UNTOLD),
                (phase.layers, _title(layers) if run.timings else UNTOLD),
                (phase.devices, timing.device),
            ):
                lines.setdefault(title, ProfileLine()).add(part, steps)
    return phase


def _whole(run: ProfiledRun, host: str) -> Timing:
    """The time of a run whose backend tells no others."""
    ran = [node.index for node in run.graph.nodes if node.op is not None and not node.op.view]
    return Timing(tuple(ran), run.seconds, host)


def _title(names: Iterable[str]) -> str:
    return " + ".join(dict.fromkeys(names)) or OTHER


def _part(timing: Timing, nodes: Sequence[Node], machine: ProfileSetup) -> ProfileLine:
    each = [(op_costs.bytes_moved(node), op_costs.multiplications(node)) for node in nodes]
    on_host = timing.device == machine.host
    return ProfileLine(
        calls=len(nodes),
        seconds=timing.seconds,
        nbytes=sum(nbytes for nbytes, _ in each),
        products=sum(products for _, products in each),
        least=sum(machine.walls.seconds(*one) for one in each) if on_host else 0.0,
        on_host=timing.seconds if on_host else 0.0,
    )
