"""Nodes that most kernels need: casts, ranks, shapes, broadcasting and grids of indices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from backbay import DType, Graph, Node
from backbay.internals import Size, Symbols, term_of

from .lowered_model import Feed, IndexGridFeed, SizeVectorFeed, onnx_type, value_dtype
from .model_builder import ModelBuilder

AnySize = Size | int


class Emitter(ModelBuilder):
    """A model builder that knows sizes: they become constants, or small inputs if they differ within a structure."""

    def __init__(self, graph: Graph, *, plain: bool = False) -> None:
        super().__init__()
        self._plain = plain
        self.symbols = Symbols(graph)
        self.feeds: dict[Feed, str] = {}
        self._before: dict[str, str] = {}  # reshaped values: from each to its original
        self.graph = graph

    # -- sizes -------------------------------------------------------------------------------------------

    def feed(self, feed: Feed) -> str:
        """The int64 input of a feed; a constant if the feed is the same for all of a structure."""
        known = [term for term in feed.terms if isinstance(term, int)]
        if isinstance(feed, SizeVectorFeed) and len(known) == len(feed.terms):
            return self.constant(feed.filled(known))
        if feed not in self.feeds:
            name = self.feeds[feed] = f"size{len(self.feeds)}"
            self.add_input(name, TensorProto.INT64, feed.rank)
        return self.feeds[feed]

    def vector(self, sizes: Sequence[AnySize]) -> str:
        return self.feed(SizeVectorFeed(tuple([term_of(size) for size in sizes])))

    def scalar(self, size: AnySize) -> str:
        return self.feed(SizeVectorFeed((term_of(size),), rank=0))

    def grid(self, start: AnySize, extents: Sequence[AnySize], steps: Sequence[AnySize]) -> str:
        """Indices: start plus the sum of position times step, innermost dimension first; shaped in reverse."""
        terms = tuple(map(term_of, extents)), tuple(map(term_of, steps))
        return self.feed(IndexGridFeed(term_of(start), *terms))

    def count(self, extent: AnySize) -> str:
        return self.grid(0, [extent], [1])

    def extents(self, node: Node) -> list[Size]:
        return [self.symbols.dim(node, n) for n in range(node.rank)]

    def product(self, sizes: Sequence[AnySize]) -> Size:
        return prod(sizes, start=self.symbols.constant(1))  # type: ignore[return-value]

    def is_in_order(self, node: Node) -> bool:
        """Whether a view begins where its storage does, and skips nothing; of quantized blocks it is not known."""
        symbols = self.symbols
        if not symbols.offset(node).same(0):
            return False
        step: Size = symbols.constant(node.dtype.type_size)
        for n in range(node.rank):
            if not (symbols.stride(node, n).same(step) or symbols.dim(node, n).same(1)):
                return False
            step = step * symbols.dim(node, n)
        return True

    # -- constants ---------------------------------------------------------------------------------------

    def number(self, value: float) -> str:
        with np.errstate(over="ignore"):
            return self.constant(np.array(value).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def filled(self, value: NDArray[Any], sizes: Sequence[AnySize]) -> str:
        """One value everywhere, in a shape given innermost first."""
        return self.add("Expand", self.constant(value), self.vector(list(sizes)[::-1]))

    def zeros(self, sizes: Sequence[AnySize]) -> str:
        return self.filled(np.array(0, np.float32), sizes)

    # -- values ------------------------------------------------------------------------------------------

    def cast(self, value: str, source: DType, target: DType) -> str:
        if value_dtype(source) is value_dtype(target):
            return value
        return self.add("Cast", value, to=onnx_type(target))

    def cast_to(self, value: str, type: int) -> str:
        return self.add("Cast", value, to=type)

    def shaped(self, value: str, sizes: Sequence[AnySize]) -> str:
        """The same elements in a shape given innermost first. Extents may be 0, and one may be -1 if none is."""
        terms = [term_of(size) for size in sizes][::-1]
        value = self.before_shaping(value)  # not a reshape of a reshape
        made = self.add(
            "Reshape", value, self.feed(SizeVectorFeed(tuple(terms))), allowzero=0 if -1 in terms else 1
        )
        self._before[made] = value
        return made

    def before_shaping(self, value: str) -> str:
        """The value that was reshaped to this one: the same elements, in any shape and rank."""
        return self._before.get(value, value)

    def ranked(self, value: str, rank: int, wanted: int) -> str:
        """With leading axes of 1 added or dropped."""
        if rank < wanted:
            return self.add("Unsqueeze", value, self.ints(*range(wanted - rank)))
        if rank > wanted:
            return self.add("Squeeze", value, self.ints(*range(rank - wanted)))
        return value

    def transposed(self, value: str, *axes: int) -> str:
        moved = list(axes) != list(range(len(axes)))
        return self.add("Transpose", value, perm=list(axes)) if moved else value

    def sliced(self, value: str, axis: int, low: AnySize, high: AnySize, step: int = 1) -> str:
        bounds = [self.vector([low]), self.vector([high]), self.ints(axis)]
        return self.add("Slice", value, *bounds, *([self.ints(step)] if step != 1 else []))

    def repeated(self, value: str, have: Sequence[AnySize], want: Sequence[AnySize]) -> str:
        """A value of the wanted rank, repeated modulo to a shape where ONNX does not broadcast by itself."""
        value = self.ranked(value, len(have), len(want))
        sizes = [self._size(have[n]) if n < len(have) else self._size(1) for n in range(len(want))]
        fits = [size.fits(want[n]) for n, size in enumerate(sizes)]
        if all(fits):
            return value
        times = [self._size(1) if fits[n] else self._size(want[n]) // sizes[n] for n in range(len(want))]
        return self.tiled(value, sizes, times)

    def tiled(self, value: str, have: Sequence[AnySize], times: Sequence[AnySize]) -> str:
        """A value repeated so many times along each dimension. In plain nodes, an axis beside each is stretched."""
        if not self._plain:
            return self.add("Tile", value, self.vector(times[::-1]))
        sizes = [self._size(size) for size in have]
        for n, count in enumerate(map(self._size, times)):
            if not count.same(1):
                inner, outer = self.product(sizes[: n + 1]), self.product(sizes[n + 1 :])
                value = self.shaped(value, [inner, 1, outer])
                if count.same(0):  # ONNX Runtime expands no 1 to 0
                    value = self.sliced(value, 1, 0, 0)
                else:
                    value = self.expanded(value, [inner, count, outer])
                sizes[n] = sizes[n] * count
        return self.shaped(value, sizes)

    def expanded(self, value: str, sizes: Sequence[AnySize]) -> str:
        """Extents of 1 stretched to a shape given innermost first."""
        return self.add("Expand", value, self.vector(list(sizes)[::-1]))

    def _size(self, size: AnySize) -> Size:
        return size if isinstance(size, Size) else self.symbols.constant(size)
