"""An operand as a kernel sees it: its value at this point of the graph, and its sizes as symbols."""

from __future__ import annotations

from typing import Protocol

from backbay import DType, Node
from backbay.internals import Size, Symbols

from .element_types import Form


class Values(Protocol):
    """The values of nodes at one point of a graph."""

    symbols: Symbols

    def stored(self, node: Node) -> str: ...

    def floats(self, node: Node) -> str: ...

    def value(self, node: Node, form: Form) -> str: ...

    def ranked(self, value: str, rank: int, wanted: int) -> str: ...


class Operand:
    """Values have the reversed shape: dimension 0 is the last axis."""

    def __init__(self, b: Values, node: Node, form: Form) -> None:
        self._b, self.node = b, node
        self._form: Form = form

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def rank(self) -> int:
        return self.node.rank

    def dim(self, n: int) -> Size:
        """The extent of a dimension; 1 beyond the rank."""
        return self._b.symbols.dim(self.node, n)

    def dims(self, rank: int | None = None) -> list[Size]:
        return [self.dim(n) for n in range(self.rank if rank is None else rank)]

    def is_empty(self) -> bool:
        """Whether it has no elements; a guard makes sure that this holds for every graph of the model."""
        return any(size.same(0) for size in self.dims() if size.constant is None or size.constant == 0)

    @property
    def stored(self) -> str:
        """The value in its own dtype, quantized types as float32."""
        return self._b.stored(self.node)

    @property
    def floats(self) -> str:
        """The value as float32."""
        return self._b.floats(self.node)

    @property
    def value(self) -> str:
        """The value in the wanted form, for ops that only move elements."""
        return self._b.value(self.node, self._form)

    def across(self, size: Size) -> Size:
        """An extent of dimension 0 in the wanted form: rows of a quantized type may be bytes."""
        return size // self.dtype.block_size * self.dtype.type_size if self._form == "raw" else size

    def of_rank(self, rank: int) -> str:
        """The value as float32 with exactly so many axes; dimensions beyond are 1."""
        return self._b.ranked(self.floats, self.rank, rank)
