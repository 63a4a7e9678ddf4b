"""The engine: PyTorch, eager or compiled. Nothing else in this backend knows how tensors are stored.

A storage is a flat tensor of the elements as they are stored; quantized types are bytes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from backbay.plugin import ArrayEngine, ArrayProgram, DType, GraphFunction

Array = Any  # a torch.Tensor

TORCH = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
}


class Eager(ArrayEngine):
    """Op by op."""

    xp = torch

    def to_engine(self, data: np.ndarray, dtype: DType) -> Array:
        tensor = torch.from_numpy(data.copy())
        return tensor.view(TORCH[dtype]) if dtype in TORCH else tensor

    def to_host(self, storage: Array) -> np.ndarray:
        flat = whole(storage).as_strided((len(storage),), (1,))  # an empty tensor may have a stride of 0
        return flat.view(torch.uint8).numpy()

    def numbers(self, stored: Array, dtype: DType) -> Array:
        return stored.float()

    def stored(self, numbers: Array, dtype: DType) -> Array:
        return numbers.to(TORCH[dtype])

    def view(self, storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        return whole(storage).as_strided(shape, strides, offset)

    def written(
        self, storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], value: Array
    ) -> Array:
        return torch.as_strided_scatter(whole(storage), value, shape, strides, offset)

    def compiled(self, program: ArrayProgram) -> GraphFunction:
        return inferred(program)


class Compiled(Eager):
    """By torch.compile."""

    def compiled(self, program: ArrayProgram) -> GraphFunction:
        """The program, compiled on its first run, from a trace of its own.

        torch.compile would take all programs for one function, and refuse to compile it again and again.
        """
        made: list[Any] = []

        def run(read: Sequence[Array], written: Sequence[Array]) -> tuple[list[Array], list[Array]]:
            if not made:
                made.append(torch.compile(make_fx(program)(read, written), fullgraph=True, dynamic=False))
            outputs, values = made[0](read, written)
            return outputs, values

        return inferred(run)


def inferred(function: GraphFunction) -> GraphFunction:
    """A function that keeps nothing for gradients."""

    def run(read: Sequence[Array], written: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        with torch.inference_mode():
            return function(read, written)

    return run


def whole(storage: Array) -> Array:
    """A storage that begins where its memory begins, as `as_strided` counts from there."""
    if storage.is_contiguous() and not storage.storage_offset():
        return storage
    return storage.clone(memory_format=torch.contiguous_format)


ENGINES: dict[str, ArrayEngine] = {"eager": Eager(), "compiled": Compiled()}
