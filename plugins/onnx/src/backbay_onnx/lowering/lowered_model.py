"""A lowered model: its element types, the integers that it is fed, and a record of each input and output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
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


def value_dtype(dtype: DType) -> DType:
    """The dtype of values inside of a model: quantized types are decoded."""
    return DType.F32 if dtype.is_quantized else dtype


def onnx_type(dtype: DType) -> int:
    return ONNX[value_dtype(dtype)]


def binding_type(dtype: DType) -> int:
    """The element type that IOBinding takes: quantized types are bytes."""
    return TensorProto.UINT8 if dtype.is_quantized else ONNX[dtype]


@dataclass(frozen=True)
class SizeVectorFeed:
    """A fed tensor of sizes, such as a shape; of rank 0, one size."""

    terms: tuple[Term, ...]
    rank: int = 1

    def size(self, values: Sequence[int]) -> int:
        return len(values)

    def filled(self, values: Sequence[int]) -> NDArray[Any]:
        """The array for the values of the terms."""
        return np.array(values, np.int64).reshape((-1,) * self.rank)


@dataclass(frozen=True)
class IndexGridFeed:
    """A fed grid of indices: start + the sum over dimensions of index times step, innermost first; the shape is reversed."""

    start: Term
    extents: tuple[Term, ...]
    steps: tuple[Term, ...]

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def terms(self) -> tuple[Term, ...]:
        return (self.start, *self.extents, *self.steps)

    def size(self, values: Sequence[int]) -> int:
        return prod(values[1 : self.rank + 1])

    def filled(self, values: Sequence[int]) -> NDArray[Any]:
        total = np.array(values[0], np.int64)
        extents, steps = values[1 : self.rank + 1], values[self.rank + 1 :]
        for n, (extent, step) in enumerate(zip(extents, steps, strict=True)):
            line = np.arange(extent, dtype=np.int64) * step
            total = total + line.reshape(-1, *[1] * n)
        return np.ascontiguousarray(total)


Feed = SizeVectorFeed | IndexGridFeed


class SizeFeeds:
    """Named feeds of a model, for all graphs of its structure."""

    def __init__(self, named: Mapping[str, Feed]) -> None:
        self._named = named
        self._values = program([term for feed in named.values() for term in feed.terms])

    def of(self, graph: Graph) -> SizeArrays:
        values = iter(self._values(graph))
        return SizeArrays(
            {name: (feed, [*islice(values, len(feed.terms))]) for name, feed in self._named.items()}
        )


@dataclass(frozen=True)
class SizeArrays:
    """The arrays of one graph. They are made when they are first asked for: a dry run only counts their bytes."""

    values: Mapping[str, tuple[Feed, Sequence[int]]]  # by name, those of the terms

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {name: feed.filled(values) for name, (feed, values) in self.values.items()}

    @property
    def nbytes(self) -> int:
        return sum(8 * feed.size(values) for feed, values in self.values.values())


class TermValues(dict[Term, int]):
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
class WeightPartInput:
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
class LoweredModel:
    """A model and its inputs and outputs. Node indices hold for any graph of the structure."""

    model: Any
    leaves: tuple[LeafInput, ...]
    feeds: SizeFeeds
    results: tuple[tuple[str, int], ...]
    states: tuple[StateOutput, ...]
    rows: tuple[RowsOutput, ...]
    parts: tuple[tuple[str, int, str], ...]  # constants handed over beside the model: file, node index, part
    resident: tuple[WeightPartInput, ...]
    checks: tuple[
        tuple[int, Term, Term], ...
    ]  # ids by node index, and the rows they must be in: first and count
    distinct: tuple[int, ...]  # ids by node index, of which no run may repeat one: the device would mix rows
    baked: tuple[tuple[int, str], ...]  # weights that are part of the model: node index and name
    packed: tuple[tuple[int, int], ...]  # bytes that a session of this model takes for weights, by node index
    guards: Guards
    copied: frozenset[int]  # views, by index, that nodes copy
    owners: Mapping[str, int]  # the index of the node that an ONNX node belongs to, by its name

    def sizes_of(self, graph: Graph) -> TermValues:
        terms, values = self._sizes
        return TermValues(zip(terms, values(graph), strict=True))

    @cached_property
    def _sizes(self) -> tuple[tuple[Term, ...], Callable[[Graph], Sequence[int]]]:
        """All terms above, and the function that computes their values at once."""
        bound = [[*(leaf.shape or ()), leaf.begin] for leaf in self.leaves]
        outputs: list[StateOutput | RowsOutput] = [*self.states, *self.rows]
        bound += [[*output.shape, output.begin] for output in outputs]
        bound += [limits for _, *limits in self.checks]
        terms = tuple(dict.fromkeys(term for each in bound for term in each if not isinstance(term, int)))
        return terms, program(terms)
