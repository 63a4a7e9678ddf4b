"""The engine: XLA through JAX, on one device. Nothing else in this package knows how arrays are stored and compiled.

A storage is a flat array of the elements as they are stored: f16 and bf16 as uint16, since XLA changes the bits of a NaN
when it moves them as numbers, and quantized types as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backbay.kernels import DeviceTrial, try_device
from backbay.plugin import NUMPY, ArrayEngine, ArrayProgram, DType, GraphFunction, decode, encode

from .devices import Device

HALVES = {DType.F16: jnp.float16, DType.BF16: jnp.bfloat16}
Array = Any  # a jax.Array
Storages = dict[Any, Array]

PART = 500  # steps that are compiled at once


class XlaEngine(ArrayEngine):
    """XLA on a device: one jit for each program, or each primitive by itself."""

    xp = jnp

    def __init__(self, device: Device, *, compiles: bool, precision: str) -> None:
        self.device, self.donates, self.precision = device, compiles, precision

    @contextmanager
    def settings(self) -> Iterator[None]:
        """64-bit integers stay whole, products have the precision that was asked for, constants lie on the device."""
        precision = jax.default_matmul_precision(self.precision)
        with jax.enable_x64(True), precision, jax.default_device(self.device):
            try:
                yield
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" in str(error):
                    raise MemoryError(str(error).partition("\n")[0]) from error
                raise

    def compiled(self, program: ArrayProgram) -> GraphFunction:
        """The program; the written leaves of a compiled one are donated: XLA writes in their place."""
        long = len(program.steps) > PART
        jitted = in_parts(program) if long else jax.jit(program, donate_argnums=1)
        function = jitted if self.donates else program

        def run(read: Sequence[Array], written: Sequence[Array]) -> tuple[list[Array], list[Array]]:
            with self.settings():
                outputs, values = function(read, written)
                jax.block_until_ready((outputs, values))
            return outputs, values

        return run

    def to_engine(self, data: np.ndarray[Any, Any], dtype: DType) -> Array:
        with self.settings():
            data = data.view(np.uint16) if dtype in HALVES else data
            return jax.device_put(data, self.device).block_until_ready()

    def to_host(self, storage: Array) -> np.ndarray[Any, Any]:
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
        leaves, own = dict(zip(program.read, read, strict=True)), Storages()
        targets = dict(zip(program.written, written, strict=True))
        for part in parts:
            targets, own = part(leaves, targets, own)
        outputs, values = results(leaves, {**targets, **own})
        return outputs, values

    return run


def in_place(part: Callable[..., Storages]) -> Callable[..., Any]:
    """A part, compiled, that takes the memory of the written leaves."""

    def run(leaves: Storages, targets: Storages, own: Storages) -> tuple[Storages, Storages]:
        behind = part(leaves, {**targets, **own})
        return {at: behind.pop(at) for at in targets}, behind

    jitted: Callable[..., Any] = jax.jit(run, donate_argnums=1)
    return jitted


@cache
def engine_for(device: Device, *, compiles: bool, precision: str) -> XlaEngine:
    """The one engine of these settings: backends that share it share its compiled programs."""
    return XlaEngine(device, compiles=compiles, precision=precision)


@cache
def trial_of(device: Device) -> DeviceTrial:
    """The outcome of a trial, made once in a process."""
    engine = engine_for(device, compiles=True, precision="highest")

    def double(numbers: list[float], dtype: DType) -> list[float]:
        def doubled(x: Array) -> Array:
            return x * 2 if dtype.is_integer else engine.stored(engine.numbers(x, dtype) * 2, dtype)

        stored = engine.to_engine(encode(np.array(numbers), dtype), dtype)
        with engine.settings():
            host = engine.to_host(jax.jit(doubled)(stored)).view(NUMPY[dtype])
        return list(decode(host, dtype).tolist())

    return try_device(double)
