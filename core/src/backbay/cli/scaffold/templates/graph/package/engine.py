"""The engine. NumPy stands in for it: put your engine's arrays and its compiler in its place, here and nowhere else.

A storage is a flat array of the elements as they are stored: bf16 as uint16, quantized types as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbay.plugin import DType, decode, encode

xp = np
Array = NDArray[Any]
Compiled = Callable[[Sequence[Array]], tuple[list[Array], list[Array]]]


def compiled(program: Compiled) -> Compiled:
    """The program, compiled; it returns the outputs, and the new values of the leaves that it writes."""
    return program


def to_engine(data: Array) -> Array:
    """A flat array of the host in the engine's memory. The host may reuse its own memory after this call."""
    return data.copy()


def to_host(array: Array) -> Array:
    """The values of a flat array of the engine, on the host."""
    return array


def flat(array: Array) -> Array:
    """The elements of an array in their order, as a storage."""
    return np.ascontiguousarray(array).reshape(-1)


def view(storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of a storage, which may be copied; offset and strides count elements, and a stride may be 0."""
    steps = [step * storage.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)


def written(
    storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], value: Array
) -> Array:
    """The storage with another value in a view of it."""
    new = storage.copy()
    view(new, offset, shape, strides)[...] = value
    return new


def numbers(stored: Array, dtype: DType) -> Array:
    """Elements as numbers to compute with: f32, integers unchanged. Quantized leaves are decoded on the host before."""
    return stored if dtype.is_integer else decode(stored, dtype).astype(np.float32)


def stored(values: Array, dtype: DType) -> Array:
    """Numbers as elements of a dtype that is not quantized, rounded to nearest."""
    return encode(values, dtype)
