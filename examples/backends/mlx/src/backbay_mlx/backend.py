"""The backend: MLX's arrays, and what of the array API standard MLX has under another name."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np

from backbay import ops
from backbay.kernels import array_kernels, count_temporaries
from backbay.plugin import NUMPY, ArrayEngine, ArrayProgram, DType, GraphBackend, GraphFunction, Node

Array = Any  # an mx.array
MLX = {dtype: getattr(mx, kind.name) for dtype, kind in NUMPY.items()} | {DType.BF16: mx.bfloat16}


def exp(x: Array) -> Array:
    """MLX's exp on a CPU is infinite beyond 88; f32 has results up to 88.7."""
    return mx.exp(mx.minimum(x, 88)) * mx.exp(mx.maximum(x - 88, 0))


def argsort(x: Array, axis: int, stable: bool) -> Array:
    return mx.argsort(x, axis=axis)  # is stable


xp = SimpleNamespace(**vars(mx) | {"bool": mx.bool_, "exp": exp, "argsort": argsort})


class MlxEngine(ArrayEngine):
    """Arrays of MLX's default device; MLX computes nothing before `mx.eval`."""

    xp = mx

    def compiled(self, program: ArrayProgram) -> GraphFunction:
        def run(read: Sequence[Array], written: Sequence[Array]) -> tuple[list[Array], list[Array]]:
            outputs, values = program(read, written)
            mx.eval(outputs, values)
            return outputs, values

        return run

    def to_engine(self, data: np.ndarray, dtype: DType) -> Array:
        array = mx.array(data, dtype=mx.float64) if dtype is DType.F64 else mx.array(data)
        return array.view(mx.bfloat16) if dtype is DType.BF16 else array

    def to_host(self, storage: Array) -> np.ndarray:
        return np.array(storage.view(mx.uint16) if storage.dtype == mx.bfloat16 else storage)

    def numbers(self, stored: Array, dtype: DType) -> Array:
        return stored.astype(mx.float32)

    def stored(self, numbers: Array, dtype: DType) -> Array:
        return numbers.astype(MLX[dtype])

    def view(self, storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        return mx.as_strided(mx.contiguous(storage), shape, strides, offset)


KERNELS = array_kernels(xp, erfc=lambda x: 1 - mx.erf(x))


def mulmat(w: Array, x: Array) -> Array:
    """In MLX 0.32.4, a product without elements of an operand with strides ends the process."""
    if w.size and x.size:
        return KERNELS[ops.mulmat](w, x)
    return mx.zeros((*x.shape[:-1], w.shape[-2] if w.ndim > 1 else 1))


class MlxBackend(GraphBackend):
    """MLX on its default device."""

    contract_version = "1.2"
    kernels = {**KERNELS, ops.mulmat: mulmat, ops.mulmat_full_prec: mulmat}
    engine = MlxEngine()

    def start(self) -> None:
        mx.set_cache_limit(0)  # else MLX keeps the memory of arrays that are gone
        super().start()

    def working_memory(self, node: Node) -> int:
        return super().working_memory(node) + 4 * count_temporaries(node)
