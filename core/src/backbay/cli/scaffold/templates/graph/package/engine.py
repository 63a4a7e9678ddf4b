"""The engine. NumPy stands in for it: put your engine's arrays and its compiler in its place, here and nowhere else."""

from typing import Any

import numpy as np

from backbay.plugin import ArrayEngine, ArrayProgram, DType, GraphFunction, decode, encode

xp = np  # jax.numpy, torch or cupy; the kernels use it, too
Array = Any  # np.ndarray, jax.Array or torch.Tensor


class Engine(ArrayEngine):
    """A storage is a flat array of elements as they are stored: here bf16 as uint16, and quantized types as bytes."""

    xp = xp

    def to_engine(self, data: np.ndarray[Any, Any], dtype: DType) -> Array:
        return data

    def to_host(self, storage: Array) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = storage
        return host

    def numbers(self, stored: Array, dtype: DType) -> Array:
        return decode(stored, dtype).astype(np.float32)

    def stored(self, numbers: Array, dtype: DType) -> Array:
        return encode(numbers, dtype)

    def compiled(self, program: ArrayProgram) -> GraphFunction:
        return program  # for example jax.jit(program)


ENGINE = Engine()
