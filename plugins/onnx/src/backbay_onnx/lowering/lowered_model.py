"""The result of lowering: a model, and a record of each input and output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backbay.internals import Term, cached_property
from backbay.plugin import Guards

from .element_types import Form
from .feeds import Feeds, Sizes


@dataclass(frozen=True)
class LeafInput:
    """A leaf or weight as an input, in a form. Without a `shape` it has its own, reversed."""

    name: str
    index: int
    form: Form
    shape: tuple[Term, ...] | None = None  # innermost first
    begin: Term = 0  # the first byte that is bound


@dataclass(frozen=True)
class PartInput:
    """A part of a packed weight as an input, for devices to which ONNX Runtime copies constants for each session."""

    name: str
    index: int
    part: str
    kind: int
    shape: tuple[int, ...]
    begin: int


@dataclass(frozen=True)
class StateOutput:
    """All of a written state. `in_place`: it is bound to the state's own memory."""

    name: str
    index: int
    shape: tuple[Term, ...]  # innermost first
    begin: Term  # the first byte of the state that is bound
    in_place: bool


@dataclass(frozen=True)
class RowsOutput:
    """Written rows of a state and their numbers: they are put into the state after the run."""

    numbers: str
    rows: str
    index: int
    shape: tuple[Term, ...]  # of the rows, innermost first
    begin: Term  # the byte of the state where row 0 begins


@dataclass(frozen=True)
class Lowered:
    """A model and its inputs and outputs. Node indices hold for any graph of the structure."""

    model: Any
    leaves: tuple[LeafInput, ...]
    feeds: Feeds
    results: tuple[tuple[str, int], ...]
    states: tuple[StateOutput, ...]
    rows: tuple[RowsOutput, ...]
    parts: tuple[tuple[str, int, str], ...]  # constants handed over beside the model: file, node index, part
    resident: tuple[PartInput, ...]
    checks: tuple[
        tuple[int, Term, Term], ...
    ]  # ids by node index, and the first row and row count they must be in
    distinct: tuple[
        int, ...
    ]  # ids by node index, of which no run may repeat one: the device would mix their rows
    baked: tuple[tuple[int, str], ...]  # weights that are part of the model: node index and name
    packed: tuple[tuple[int, int], ...]  # bytes that a session of this model takes for weights, by node index
    guards: Guards
    copied: frozenset[int]  # views, by index, that nodes copy
    owners: Mapping[str, int]  # the index of the node that an ONNX node belongs to, by its name

    @cached_property
    def sizes(self) -> Sizes:
        """All terms above."""
        bound = [(*(leaf.shape or ()), leaf.begin) for leaf in self.leaves]
        outputs: list[StateOutput | RowsOutput] = [*self.states, *self.rows]
        bound += [(*output.shape, output.begin) for output in outputs]
        return Sizes([term for terms in (*bound, *(limits for _, *limits in self.checks)) for term in terms])
