"""The interface between core and the arrays of an engine that runs graphs as pure functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.encoding import NUMPY, Array
from ..types.dtypes import DType

if TYPE_CHECKING:
    from .array_program import ArrayProgram

GraphFunction = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]
"""A graph as a pure function: of the leaves that it only reads, and of the leaves that it writes.

It returns the outputs, and the new values of the leaves that it writes.
"""


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

        The host may reuse its own memory after this call.
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
        return self.to_engine(np.zeros(elements, NUMPY.get(dtype, np.dtype(np.uint8))), dtype)

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
