"""A lowered model: its element types, the integers that it is fed, and a record of each input and output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from backbay import DType, Graph
from backbay.internals import Term, cached_property
from backbay.plugin import Guards, program

Form = Literal["stored", "floats", "raw"]
"""stored: in its own dtype, quantized types as float32; floats: as float32; raw: quantized rows as bytes."""

ONNX: dict[DType, int] = {
    DType.F32: TensorProto.FLOAT,
    DType.F16: TensorProto.FLOAT16,
    DType.BF16: TensorProto.BFLOAT16,
    DType.I32: TensorProto.INT32,
    DType.I64: TensorProto.INT64,
}


def held(dtype: DType) -> DType:
    """The dtype of values inside of a model: quantized types are decoded."""
    return DType.F32 if dtype.is_quantized else dtype


def onnx_type(dtype: DType) -> int:
    return ONNX[held(dtype)]


def binding_type(dtype: DType) -> int:
    """The element type that IOBinding takes: quantized types are bytes."""
    return TensorProto.UINT8 if dtype.is_quantized else ONNX[dtype]


@dataclass(frozen=True)
class Vector:
    """Sizes one after the other, such as a shape; of rank 0, one size."""

    terms: tuple[Term, ...]
    rank: int = 1


@dataclass(frozen=True)
class Grid:
    """start + the sum over dimensions of index times step, innermost dimension first; the shape is reversed."""

    start: Term
    extents: tuple[Term, ...]
    steps: tuple[Term, ...]

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def terms(self) -> tuple[Term, ...]:
        return (self.start, *self.extents, *self.steps)

    def filled(self, values: Sequence[int]) -> NDArray[Any]:
        total = np.array(values[0], np.int64)
        extents, steps = values[1 : self.rank + 1], values[self.rank + 1 :]
        for n, (extent, step) in enumerate(zip(extents, steps, strict=True)):
            line = np.arange(extent, dtype=np.int64) * step
            total = total + line.reshape(-1, *[1] * n)
        return np.ascontiguousarray(total)


Feed = Vector | Grid


class Feeds:
    """The arrays of named feeds. All but grids lie in one array, one after the other."""

    def __init__(self, named: Mapping[str, Feed]) -> None:
        self.named = named
        self._grids = {name: feed for name, feed in named.items() if isinstance(feed, Grid)}
        plain = {name: feed for name, feed in named.items() if name not in self._grids}
        counts = [len(feed.terms) for feed in plain.values()]
        begins = list(accumulate(counts, initial=0))
        self.count = begins[-1]
        self.places = tuple(  # name, shape and first item
            (name, (count,) * feed.rank, begin)
            for (name, feed), count, begin in zip(plain.items(), counts, begins, strict=False)
        )
        ordered = (*plain.values(), *self._grids.values())
        self._values = program([term for feed in ordered for term in feed.terms])

    def of(self, graph: Graph) -> Fed:
        values = self._values(graph)
        given, first = {}, self.count
        for name, grid in self._grids.items():
            given[name] = grid, values[first : first + len(grid.terms)]
            first += len(grid.terms)
        return Fed(np.array(values[: self.count], np.int64), self.places, given)


@dataclass(frozen=True)
class Fed:
    """The arrays of one graph. Grids are made when they are first asked for: a dry run only counts their bytes."""

    numbers: NDArray[np.int64]
    places: tuple[tuple[str, tuple[int, ...], int], ...]
    given: Mapping[str, tuple[Grid, Sequence[int]]]  # grids by name, and the values of their terms

    @cached_property
    def grids(self) -> dict[str, NDArray[Any]]:
        return {name: grid.filled(values) for name, (grid, values) in self.given.items()}

    @property
    def nbytes(self) -> int:
        extents = [values[1 : grid.rank + 1] for grid, values in self.given.values()]
        return self.numbers.nbytes + sum(8 * prod(extent) for extent in extents)

    def arrays(self) -> dict[str, NDArray[Any]]:
        plain = {
            name: self.numbers[first : first + prod(shape)].reshape(shape)
            for name, shape, first in self.places
        }
        return {**plain, **self.grids}


class SizeValues(dict[Term, int]):
    """Values by term; the value of a number is itself."""

    def __missing__(self, term: Term) -> int:
        if not isinstance(term, int):
            raise KeyError(term)
        return term

    def all(self, terms: Iterable[Term]) -> tuple[int, ...]:
        return tuple([self[term] for term in terms])


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
    ]  # ids by node index, and the rows they must be in: first and count
    distinct: tuple[int, ...]  # ids by node index, of which no run may repeat one: the device would mix rows
    baked: tuple[tuple[int, str], ...]  # weights that are part of the model: node index and name
    packed: tuple[tuple[int, int], ...]  # bytes that a session of this model takes for weights, by node index
    guards: Guards
    copied: frozenset[int]  # views, by index, that nodes copy
    owners: Mapping[str, int]  # the index of the node that an ONNX node belongs to, by its name

    def sizes_of(self, graph: Graph) -> SizeValues:
        terms, values = self._sizes
        return SizeValues(zip(terms, values(graph), strict=True))

    @cached_property
    def _sizes(self) -> tuple[tuple[Term, ...], Callable[[Graph], Sequence[int]]]:
        """All terms above, and the function that computes their values at once."""
        bound = [[*(leaf.shape or ()), leaf.begin] for leaf in self.leaves]
        outputs: list[StateOutput | RowsOutput] = [*self.states, *self.rows]
        bound += [[*output.shape, output.begin] for output in outputs]
        bound += [limits for _, *limits in self.checks]
        terms = tuple(dict.fromkeys(term for each in bound for term in each if not isinstance(term, int)))
        return terms, program(terms)
