"""Graphs as pure functions over an engine's arrays: the interface of the engine, and the program that it can compile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from ..data.encoding import NUMPY, Array
from ..ops.op_declaration import Op
from ..types.dtype import DType
from .graph import Graph, Node

GraphFunction = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]
"""A graph as a pure function: of the leaves that it only reads, and of the leaves that it writes.

It returns the outputs, and the new values of the leaves that it writes.
"""

Place = tuple[int, bool]
"""The index of the node that holds a storage, and whether its numbers are meant: quantized leaves are decoded before."""
Part = Callable[[Mapping[Place, Any], Mapping[Place, Any]], dict[Place, Any]]
"""Some steps as a function of the leaves that are only read, and of all other storages; it returns the latter."""


class ArrayEngine(ABC):
    """The arrays of an engine, and its compiler.

    A storage is a flat array of elements as they are stored, in whatever type the engine stores a dtype; quantized types
    are bytes. A kernel gets numbers instead: floats as f32, integers unchanged, in arrays of the reversed shape.

    The default methods need a module with NumPy's names: NumPy, jax.numpy, torch or CuPy. An engine with other arrays, or
    with faster ways, overrides them.
    """

    xp: ModuleType
    """The module of the engine's arrays, with `moveaxis`, `concatenate`, `where` and `asarray`."""
    donates: bool = False
    """Whether a compiled graph takes the memory of written leaves for their new values."""

    # -- to implement ------------------------------------------------------------------------------------

    @abstractmethod
    def to_engine(self, data: Array, dtype: DType) -> Any:
        """A storage with the elements of a flat array of the host: bf16 as uint16, quantized types as bytes.

        The array is the engine's from now on: the host keeps no reference to it.
        """

    @abstractmethod
    def to_host(self, storage: Any) -> Array:
        """The elements of a storage on the host, as a flat array in the layout that `to_engine` gets."""

    @abstractmethod
    def numbers(self, stored: Any, dtype: DType) -> Any:
        """Stored elements of a float dtype that is not quantized, as f32."""

    @abstractmethod
    def stored(self, numbers: Any, dtype: DType) -> Any:
        """Numbers as they are stored in a dtype that is not quantized: rounded to nearest, ties to even."""

    # -- to override -------------------------------------------------------------------------------------

    def compiled(self, program: ArrayProgram) -> GraphFunction:
        """The program, compiled. It is kept, and called with arrays of the same shapes and types each time."""
        return program

    def zeros(self, elements: int, dtype: DType) -> Any:
        """A storage of zeros; the elements of quantized types are bytes."""
        # Unlike np.zeros, np.full takes the memory that is booked.
        return self.to_engine(np.full(elements, 0, NUMPY.get(dtype, np.dtype(np.uint8))), dtype)

    def view(self, storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """A view of a storage, which may be copied; offset and strides count elements, and a stride may be 0.

        A part without gaps, however its axes are ordered, is a slice. Other views are gathered by a constant index.
        """
        order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], -shape[axis]))
        inner = tuple(shape[axis] for axis in order)
        if _without_gaps(inner, tuple(strides[axis] for axis in order)):
            part = storage[offset : offset + prod(shape)].reshape(inner)
            return self.xp.moveaxis(part, tuple(range(len(shape))), tuple(order))
        return storage[self.xp.asarray(self.places(offset, shape, strides))]

    def written(
        self, storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], value: Any
    ) -> Any:
        """The storage with another value, of this shape, in a view of it.

        The old storage stays as it is, unless a compiled graph may take its memory (`donates`).
        """
        flat, count = value.reshape(-1), prod(shape)
        if count == len(storage) and _without_gaps(shape, strides):
            return flat
        if _without_gaps(shape, strides):
            return self.xp.concatenate([storage[:offset], flat, storage[offset + count :]])
        origin = np.full(len(storage), -1, np.int64)
        origin[self.places(offset, shape, strides)] = np.arange(count).reshape(shape)
        new = flat[self.xp.asarray(np.maximum(origin, 0))]
        return self.xp.where(self.xp.asarray(origin >= 0), new, storage)

    @staticmethod
    def places(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """The place of each element of a view in its storage, for an index."""
        places = np.full(shape, offset, np.int64)
        for axis, stride in enumerate(strides):
            places += (np.arange(shape[axis]) * stride).reshape(-1, *[1] * (len(shape) - 1 - axis))
        return places


def _without_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements of axes in this order follow each other."""
    steps = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return all(n == 1 or stride == step for n, stride, step in zip(shape, strides, steps, strict=True))


@dataclass(frozen=True)
class StorageView:
    """A part of a storage: offset and strides count the elements of its flat array."""

    storage: Place
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, node: Node, *, as_numbers: bool = False) -> StorageView:
        dtype, shape = node.dtype, list(node.shape)
        strides = [node.stride(n) for n in range(node.rank)]
        unit, per_unit = dtype.type_size, 1
        if dtype.is_quantized and as_numbers:
            per_unit, dtype = dtype.block_size, DType.F32
            steps = [1] + [step // unit * per_unit for step in strides[1:]]
        else:
            if dtype.is_quantized:  # a row is an array of its bytes
                unit, shape[0], strides[0] = 1, node.row_nbytes, 1
            steps = [step // unit for step in strides]
        shape, steps = shape or [1], steps or [1]
        offset = node.offset // unit * per_unit
        return cls((node.storage.index, as_numbers), dtype, offset, tuple(shape[::-1]), tuple(steps[::-1]))

    def read(self, storages: Mapping[Place, Any], engine: ArrayEngine) -> Any:
        storage = storages[self.storage]
        if not prod(self.shape):  # an empty view may lie behind the end of its storage
            return storage[:0].reshape(self.shape)
        return engine.view(storage, self.offset, self.shape, self.strides)


@dataclass(frozen=True)
class KernelStep:
    """One kernel: its arguments, its result, and the storages that nothing reads afterwards."""

    op: Op[Any, Any]
    kernel: Callable[..., Any]
    args: tuple[Any, ...]  # views, attributes, None
    result: StorageView
    last: tuple[Place, ...]

    def run(self, storages: dict[Place, Any], engine: ArrayEngine) -> None:
        value = self.kernel(*[self._argument(i, storages, engine) for i in range(len(self.args))])
        if not self.op.moves:
            value = engine.stored(value, self.result.dtype)
        at, view = self.result.storage, self.result
        if self.op.writes is None:
            storages[at] = value.reshape(-1)
        elif prod(view.shape):
            value = value.reshape(view.shape)
            storages[at] = engine.written(storages[at], view.offset, view.shape, view.strides, value)
        for storage in self.last:
            del storages[storage]

    def _argument(self, position: int, storages: Mapping[Place, Any], engine: ArrayEngine) -> Any:
        view = self.args[position]
        if not isinstance(view, StorageView):
            return view
        raw = view.read(storages, engine)
        if self.op.moves and (position == self.op.ids or view.dtype is self.result.dtype):
            return raw  # moved as it is stored
        numbers = raw if view.dtype.is_integer else engine.numbers(raw, view.dtype)
        return engine.stored(numbers, self.result.dtype) if self.op.moves else numbers


class ArrayProgram:
    """The steps of a graph. It keeps no node: a program outlives the leaves of the graph that it was made of.

    read      the storages of leaves that it only reads; a quantized leaf may be there twice, as bytes and as numbers
    written   the leaves that it writes
    """

    def __init__(
        self, graph: Graph, kernels: Mapping[Op[Any, Any], Callable[..., Any]], engine: ArrayEngine
    ) -> None:
        self.engine = engine
        self.outputs = [StorageView.of(node) for node in graph.outputs]
        nodes = [node for node in graph.nodes if node.op is not None and not node.op.view]
        args = [tuple(_argument(node, arg) for arg in node.args) for node in nodes]
        results = [StorageView.of(node) for node in nodes]
        leaves = {node.index for node in graph.nodes if node.op is None}
        reads = [[arg.storage for arg in each if isinstance(arg, StorageView)] for each in args]
        used = [*(at for each in reads for at in each), *(view.storage for view in [*results, *self.outputs])]
        self.written = list(dict.fromkeys(view.storage for view in results if view.storage[0] in leaves))
        self.read = [at for at in dict.fromkeys(used) if at[0] in leaves and at not in self.written]
        kept = {*self.written, *(view.storage for view in self.outputs)}
        self.steps: list[KernelStep] = []
        for node, arguments, result, before in reversed(list(zip(nodes, args, results, reads, strict=True))):
            assert node.op is not None
            last = tuple(at for at in dict.fromkeys([*before, result.storage]) if at not in kept)
            kept |= {*last}
            self.steps.append(KernelStep(node.op, node.op.spread(kernels[node.op]), arguments, result, last))
        self.steps.reverse()

    def __call__(self, read: Sequence[Any], written: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The outputs, and the new values of the written leaves. Outputs that are views are read at the end."""
        leaves = dict(zip(self.read, read, strict=True))
        own = dict(zip(self.written, written, strict=True))
        return self.results(leaves, self._run(self.steps, leaves, own))

    def parts(self, most: int) -> list[Part]:
        """The steps, so many at a time, for compilers whose time grows faster than a program."""
        cuts = range(0, len(self.steps), most)
        return [partial(self._run, self.steps[first : first + most]) for first in cuts]

    def results(self, leaves: Mapping[Place, Any], own: Mapping[Place, Any]) -> tuple[list[Any], list[Any]]:
        """What the program returns, from the storages behind its last step."""
        storages = {**leaves, **own}
        outputs = [view.read(storages, self.engine).reshape(-1) for view in self.outputs]
        return outputs, [storages[at] for at in self.written]

    def _run(
        self, steps: Sequence[KernelStep], leaves: Mapping[Place, Any], own: Mapping[Place, Any]
    ) -> dict[Place, Any]:
        storages = {**leaves, **own}
        for step in steps:
            step.run(storages, self.engine)
        return {at: storage for at, storage in storages.items() if at not in leaves}


def _argument(node: Node, arg: Any) -> Any:
    """An argument of a node: a view in place of an operand."""
    if not isinstance(arg, Node):
        return arg
    assert node.op is not None
    converted = not node.op.moves or arg.dtype is not node.dtype
    return StorageView.of(arg, as_numbers=arg.dtype.is_quantized and converted)
