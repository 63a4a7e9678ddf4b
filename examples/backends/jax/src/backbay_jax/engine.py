"""The engine: XLA through JAX. Nothing else in this backend knows how arrays are stored and graphs are compiled.

A storage is a flat array of the elements as they are stored: f16 and bf16 as uint16, since XLA changes the bits of a NaN
when it moves them as numbers, and quantized types as bytes.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backbay.plugin import NUMPY, ArrayEngine, ArrayProgram, DType, GraphFunction

HALVES = {DType.F16: jnp.float16, DType.BF16: jnp.bfloat16}
Array = Any  # a jax.Array

PART = 500  # steps that are compiled at once

wide = jax.enable_x64
"""JAX cuts 64-bit integers in half by default: this context, which is of one thread, keeps them."""


class XLA(ArrayEngine):
    """One jit for each program."""

    xp = jnp
    donates = True

    def compiled(self, program: ArrayProgram) -> GraphFunction:
        """The written leaves are donated: XLA writes in their place."""
        long = len(program.steps) > PART
        jitted = in_parts(program) if long else jax.jit(program, donate_argnums=1)

        def run(read: Sequence[Array], written: Sequence[Array]) -> tuple[list[Array], list[Array]]:
            with wide(True), jax.default_matmul_precision("highest"):
                outputs, values = jitted(read, written)
            jax.block_until_ready((outputs, values))
            return outputs, values

        return run

    def to_engine(self, data: np.ndarray, dtype: DType) -> Array:
        with wide(True):
            return jax.device_put(data.view(np.uint16) if dtype in HALVES else data).block_until_ready()

    def to_host(self, storage: Array) -> np.ndarray:
        return np.asarray(storage)

    def numbers(self, stored: Array, dtype: DType) -> Array:
        if dtype in HALVES:
            stored = jax.lax.bitcast_convert_type(stored, HALVES[dtype])
        return stored.astype(jnp.float32)

    def stored(self, numbers: Array, dtype: DType) -> Array:
        if dtype in HALVES:
            return jax.lax.bitcast_convert_type(numbers.astype(HALVES[dtype]), jnp.uint16)
        return numbers.astype(NUMPY[dtype])

    def written(
        self, storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], value: Array
    ) -> Array:
        """XLA updates a donated storage in place."""
        if list(strides) == [prod(shape[n + 1 :]) for n in range(len(shape))]:
            return jax.lax.dynamic_update_slice(storage, value.reshape(-1), [offset])
        return storage.at[self.places(offset, shape, strides)].set(value)


def in_parts(program: ArrayProgram) -> GraphFunction:
    """XLA takes more than ten minutes for thousands of steps at once."""
    parts = [in_place(part) for part in program.parts(PART)]
    results = jax.jit(program.results)

    def run(read: Sequence[Array], written: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        leaves, own = dict(zip(program.read, read, strict=True)), {}
        targets = dict(zip(program.written, written, strict=True))
        for part in parts:
            targets, own = part(leaves, targets, own)
        outputs, values = results(leaves, {**targets, **own})
        return outputs, values

    return run


def in_place(part: Callable[..., dict[Any, Array]]) -> Callable[..., Any]:
    """A part, compiled, that takes the memory of the written leaves."""

    def run(leaves: dict, targets: dict, own: dict) -> tuple[dict, dict]:
        behind = part(leaves, {**targets, **own})
        return {at: behind.pop(at) for at in targets}, behind

    return jax.jit(run, donate_argnums=1)


ENGINE = XLA()
