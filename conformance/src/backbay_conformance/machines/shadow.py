"""The shadow of a context: its graph in plain NumPy, node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbay import Context, Tensor

Array = NDArray[Any]


@dataclass(eq=False)
class Shadow:
    """A tensor and the data that it must hold.

    A leaf holds `data`. A view is a NumPy view of its first operand's array. Any other node computes an array from
    its operands' arrays; `target` is the index of the operand that a write changes.
    """

    tensor: Tensor
    owner: ContextShadow | None  # None for a weight
    name: str
    peak: float  # bound of all elements, so that sums stay exact
    operands: tuple[Shadow, ...] = ()
    function: Callable[..., Array] | None = None
    view: bool = False
    target: int | None = None
    data: Array | None = None
    written: bool = True  # a leaf is unwritten until its data are set

    @property
    def is_leaf(self) -> bool:
        return self.function is None

    @property
    def base(self) -> Shadow:
        """The node whose storage this node shares; the node itself if it has its own."""
        if self.target is not None:
            return self.operands[self.target].base
        return self.operands[0].base if self.view else self

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def leaves(self) -> Iterator[Shadow]:
        """All leaves and weights that the node depends on, or the node itself if it is a leaf."""
        if self.is_leaf:
            yield self
        for operand in self.operands:
            yield from operand.leaves()


@dataclass(eq=False)
class ContextShadow:
    """A context with its traced nodes, its roots, and its readable results."""

    ctx: Context
    name: str
    nodes: list[Shadow] = field(default_factory=list)
    roots: list[Shadow] = field(default_factory=list)
    results: dict[Shadow, Array | None] = field(default_factory=dict)  # None: readable, but with unknown data
    latest: list[Shadow] = field(default_factory=list)  # the outputs of the last compute
    doubtful: set[Shadow] = field(default_factory=set)  # may be readable or not
    closed: bool = False
    stale: bool = True  # the next compute compiles
    moved: bool = False  # another context has compiled since, and may have moved shared memory

    def root(self, shadow: Shadow) -> None:
        if shadow not in self.roots:
            self.roots.append(shadow)
            self.stale = True

    def doubt(self) -> None:
        """From now on the results may be readable, or not."""
        self.doubtful |= set(self.results)
        self.results = {}

    def needs(self) -> Iterator[Shadow]:
        """The leaves and weights of the whole graph."""
        for root in self.roots:
            yield from root.leaves()

    def run(self) -> None:
        """Evaluate each root in order, after its operands. A view shows its storage's data at the time of reading."""
        self.values: dict[Shadow, Array] = {}
        self.known: dict[Shadow, bool] = {}
        for root in self.roots:
            self._evaluate(root)

    def is_known(self, shadow: Shadow) -> bool:
        """Whether the node's data depend on no unwritten leaf."""
        base = shadow.base
        return base.written if base.is_leaf else self.known[base]

    def _evaluate(self, shadow: Shadow) -> Array:
        """The array of a node, evaluated once."""
        if shadow in self.values:
            return self.values[shadow]
        operands = [self._evaluate(operand) for operand in shadow.operands]
        known = all(self.is_known(operand) for operand in shadow.operands)
        if shadow.function is None:
            assert shadow.data is not None
            result = shadow.data
        elif shadow.target is not None:
            result, base = operands[shadow.target], shadow.base
            result[...] = shadow.function(*operands)
            source = all(self.is_known(o) for i, o in enumerate(shadow.operands) if i != shadow.target)
            base.written = source and (base.written or result.size == base.tensor.size)
        else:
            result = shadow.function(*operands)
            result = result if shadow.view else np.array(result)
        self.values[shadow], self.known[shadow] = result, known
        return result
