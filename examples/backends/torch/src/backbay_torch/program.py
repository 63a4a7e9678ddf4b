"""A graph as a pure function of the storages of its leaves, which an engine can compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from backbay.plugin import DType, Graph, Node, Op

from . import engine
from .engine import Array


@dataclass(frozen=True)
class View:
    """A part of a storage: offset and strides count the elements of its flat array."""

    storage: tuple[
        int, bool
    ]  # the node that holds it, and whether as numbers: quantized leaves are decoded before
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, node: Node, *, as_numbers: bool = False) -> View:
        dtype, shape = node.dtype, list(node.shape)
        strides = [node.stride(n) for n in range(node.rank)]
        unit, per_unit = dtype.type_size, 1
        if dtype.is_quantized and as_numbers:
            per_unit, strides[0], dtype = dtype.block_size, dtype.type_size // dtype.block_size, DType.F32
            steps = [1] + [step // unit * per_unit for step in strides[1:]]
        else:
            if dtype.is_quantized:  # a row is an array of its bytes
                unit, shape[0], strides[0] = 1, node.row_nbytes, 1
            steps = [step // unit for step in strides]
        shape, steps = shape or [1], steps or [1]
        offset = node.offset // unit * per_unit
        return cls((node.storage.index, as_numbers), dtype, offset, tuple(shape[::-1]), tuple(steps[::-1]))

    def read(self, flats: dict[tuple[int, bool], Array]) -> Array:
        flat = flats[self.storage]
        if not prod(self.shape):  # an empty view may lie behind the end of its storage
            return flat[:0].reshape(self.shape)
        return engine.view(flat, self.offset, self.shape, self.strides)


@dataclass(frozen=True)
class Step:
    """One kernel: its arguments, its result, and the storages that nothing reads afterwards."""

    op: Op[Any, Any]
    kernel: Callable[..., Array]
    args: tuple[Any, ...]  # views, attributes, None
    result: View
    last: list[tuple[int, bool]]

    def run(self, flats: dict[tuple[int, bool], Array]) -> None:
        value = self.kernel(*[self._argument(i, arg, flats) for i, arg in enumerate(self.args)])
        if not self.op.moves:
            value = engine.stored(value, self.result.dtype)
        at, view = self.result.storage, self.result
        if self.op.writes is None:
            flats[at] = engine.flat(value)
        elif prod(view.shape):
            value = value.reshape(view.shape)
            flats[at] = engine.written(flats[at], view.offset, view.shape, view.strides, value)
        for storage in self.last:
            del flats[storage]

    def _argument(self, position: int, arg: Any, flats: dict[tuple[int, bool], Array]) -> Any:
        if not isinstance(arg, View):
            return arg
        raw = arg.read(flats)
        if not self.op.moves:
            return engine.numbers(raw, arg.dtype)
        if position == self.op.ids or arg.dtype is self.result.dtype:
            return raw  # moved as it is stored
        return engine.stored(engine.numbers(raw, arg.dtype), self.result.dtype)


class Program:
    """The steps of a graph. It keeps no node: a program outlives the leaves of the graph that it was made of."""

    def __init__(self, graph: Graph, kernels: Mapping[Op[Any, Any], Callable[..., Array]]) -> None:
        self.outputs = [View.of(node) for node in graph.outputs]
        nodes = [node for node in graph.nodes if node.op is not None and not node.op.view]
        args = [tuple(_argument(node, arg) for arg in node.args) for node in nodes]
        results = [View.of(node) for node in nodes]
        leaves = {node.index for node in graph.nodes if node.op is None}
        read = [[arg.storage for arg in each if isinstance(arg, View)] for each in args]
        used = [*(at for each in read for at in each), *(view.storage for view in [*results, *self.outputs])]
        self.inputs = list(dict.fromkeys(at for at in used if at[0] in leaves))
        self.written = list(dict.fromkeys(view.storage for view in results if view.storage[0] in leaves))
        kept = {*self.written, *(view.storage for view in self.outputs)}
        self.steps: list[Step] = []
        for node, arguments, result, before in reversed(list(zip(nodes, args, results, read, strict=True))):
            assert node.op is not None
            last = [at for at in dict.fromkeys([*before, result.storage]) if at not in kept]
            kept |= {*last}
            call = node.op.spread(kernels[node.op])
            self.steps.insert(0, Step(node.op, call, arguments, result, last))

    def __call__(self, leaves: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """The outputs, and the new values of the written leaves. Outputs that are views are read at the end."""
        flats = dict(zip(self.inputs, leaves, strict=True))
        for step in self.steps:
            step.run(flats)
        return [engine.flat(view.read(flats)) for view in self.outputs], [flats[at] for at in self.written]


def _argument(node: Node, arg: Any) -> Any:
    """An argument of a node: a view in place of an operand."""
    if not isinstance(arg, Node):
        return arg
    assert node.op is not None
    converted = not node.op.moves or arg.dtype is not node.dtype
    return View.of(arg, as_numbers=arg.dtype.is_quantized and converted)
