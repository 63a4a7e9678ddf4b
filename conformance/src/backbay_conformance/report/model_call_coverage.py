"""The counts of the calls of a model, which a report shows after a run with `--like`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .report import Outcome


@dataclass
class ModelCallCoverage:
    """How many calls of a model a run with `--like` made, of which kinds, and which kinds the suite has, too."""

    model: str
    left_out: list[str]
    nodes: int = 0  # of a graph that a file holds
    unmapped: dict[str, int] = field(default_factory=dict)  # nodes that are no calls of the contract, by name
    calls: int = 0
    kinds: set[str] = field(default_factory=set)
    drawn: set[str] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        if outcome.profile == "like":
            self.calls += 1
            self.kinds |= {outcome.kind} if outcome.kind else set()
        elif outcome.kind:
            self.drawn.add(outcome.kind)

    def __str__(self) -> str:
        more = f"; {len(self.left_out)} too large to be judged" if self.left_out else ""
        met = f"; {len(self.kinds & self.drawn)} of these kinds are also among the suite's own calls"
        return (
            f"{self.calls} calls that {self.model} makes, of {len(self.kinds)} kinds (op, dtypes, layouts, size "
            f"classes){more}{met if self.drawn else ''}{self._graph}"
        )

    @property
    def _graph(self) -> str:
        count = sum(self.unmapped.values())
        named = ", ".join(f"{name} {number}" for name, number in self.unmapped.items())
        lacking = (
            f"{count} of them without an op in the contract: {named}" if count else "all in the contract"
        )
        return f"; its graph has {self.nodes} nodes, {lacking}" if self.nodes else ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "calls": self.calls,
            "kinds": sorted(self.kinds),
            "not_drawn": sorted(self.kinds - self.drawn),
            "left_out": sorted(self.left_out),
            "nodes": self.nodes,
            "unmapped": self.unmapped,
        }
