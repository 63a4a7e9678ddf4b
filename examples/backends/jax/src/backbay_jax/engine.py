"""The engine: XLA through JAX. Nothing else in this backend knows how arrays are made and programs are compiled.

A storage is a flat array of the elements as they are stored: f16 and bf16 as uint16, since XLA changes the bits of a NaN
when it moves them as numbers, and quantized types as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backbay.plugin import NUMPY, DType

HALVES = {DType.F16: jnp.float16, DType.BF16: jnp.bfloat16}
Array = Any  # a jax.Array, or NumPy's on the host
Compiled = Callable[[list[Array], list[Array]], tuple[list[Array], list[Array]]]

wide = jax.enable_x64
"""JAX cuts 64-bit integers in half by default: this context, which is of one thread, keeps them."""


def compiled(program: Compiled) -> Compiled:
    """One jit for each program. The written leaves are donated: XLA writes in their place."""
    return jax.jit(program, donate_argnums=1)


def to_engine(data: np.ndarray, dtype: DType) -> Array:
    """A flat array of the host in the engine's memory. The host may reuse its own memory after this call."""
    with wide(True):
        return jnp.array(data.view(np.uint16) if dtype in HALVES else data, copy=True)


def zeros(elements: int, dtype: DType) -> Array:
    """A storage of zeros, made where it lies."""
    with wide(True):
        return jnp.zeros(elements, np.uint16 if dtype in HALVES else NUMPY.get(dtype, np.uint8))


def to_host(array: Array) -> np.ndarray:
    """The bytes of a flat array of the engine, on the host."""
    return np.asarray(array).view(np.uint8)


def flat(array: Array) -> Array:
    """The elements of an array in their order, as a storage."""
    return array.reshape(-1)


def view(storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of a storage; offset and strides count elements, and a stride may be 0.

    Reordered parts without gaps are slices, which XLA fuses. Others are gathered by a constant index.
    """
    order = sorted(range(len(shape)), key=lambda i: (-strides[i], -shape[i]))
    inner = [shape[i] for i in order]
    steps = [prod(inner[n + 1 :]) for n in range(len(inner))]
    if all(shape[i] == 1 or strides[i] == step for i, step in zip(order, steps, strict=True)):
        part = storage[offset : offset + prod(shape)].reshape(inner)
        return part.transpose([order.index(i) for i in range(len(shape))])
    return storage[places(offset, shape, strides)]


def written(
    storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], value: Array
) -> Array:
    """The storage with another value in a view of it."""
    if list(strides) == [prod(shape[n + 1 :]) for n in range(len(shape))]:
        return jax.lax.dynamic_update_slice(storage, value.reshape(-1), [offset])
    return storage.at[places(offset, shape, strides)].set(value)


def places(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """The index of each element of a view."""
    index = np.full(shape, offset, np.int32)
    for axis, step in enumerate(strides):
        index += (np.arange(shape[axis]) * step).astype(np.int32).reshape(-1, *[1] * (len(shape) - 1 - axis))
    return index


def numbers(stored: Array, dtype: DType) -> Array:
    """Elements as numbers to compute with: f32, integers unchanged. Quantized leaves are decoded on the host before."""
    if dtype in HALVES:
        stored = jax.lax.bitcast_convert_type(stored, HALVES[dtype])
    return stored if dtype.is_integer else stored.astype(jnp.float32)


def stored(values: Array, dtype: DType) -> Array:
    """Numbers as elements of a dtype that is not quantized, rounded to nearest."""
    if dtype in HALVES:
        return jax.lax.bitcast_convert_type(values.astype(HALVES[dtype]), jnp.uint16)
    return values.astype(NUMPY[dtype])
