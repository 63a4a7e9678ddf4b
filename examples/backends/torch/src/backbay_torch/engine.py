"""The engine: PyTorch, eager or compiled. Nothing else in this backend knows how its programs are compiled.

A storage is a flat tensor of the elements as they are stored; quantized types are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from backbay.plugin import DType

Array = Any  # a torch.Tensor, or NumPy's array on the host
Compiled = Callable[[list[Array]], tuple[list[Array], list[Array]]]

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


def compiled(program: Compiled, mode: str) -> Compiled:
    """The program: as it is, or compiled on its first run, from a trace of its own.

    torch.compile would take all programs for one function, and refuse to compile it again and again.
    """
    made: list[Any] = []

    def run(leaves: list[Array]) -> tuple[list[Array], list[Array]]:
        if not made:
            made.append(torch.compile(make_fx(program)(leaves), fullgraph=True, dynamic=False))
        outputs, written = made[0](leaves)
        return outputs, written

    return program if mode == "eager" else run


def to_engine(data: np.ndarray, dtype: DType) -> Array:
    """A flat tensor of a host's array. The host may reuse its own memory after this call."""
    tensor = torch.from_numpy(np.array(data))
    return tensor.view(TORCH[dtype]) if dtype in TORCH else tensor


def to_host(tensor: Array) -> np.ndarray:
    """The bytes of a flat tensor, on the host."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def flat(tensor: Array) -> Array:
    """The elements of a tensor in their order, as a storage, which begins where its memory begins."""
    whole = tensor.is_contiguous() and not tensor.storage_offset()
    return tensor.reshape(-1) if whole else tensor.clone(memory_format=torch.contiguous_format).reshape(-1)


def view(storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of a storage; offset and strides count elements, and a stride may be 0."""
    return storage.as_strided(shape, strides, offset)


def written(
    storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], value: Array
) -> Array:
    """The storage with another value in a view of it."""
    return torch.as_strided_scatter(storage, value, shape, strides, offset)


def numbers(stored: Array, dtype: DType) -> Array:
    """Elements as numbers to compute with: f32, integers unchanged. Quantized leaves are decoded on the host before."""
    return stored if dtype.is_integer else stored.float()


def stored(values: Array, dtype: DType) -> Array:
    """Numbers as elements of a dtype that is not quantized, rounded to nearest."""
    return values.to(TORCH[dtype])
