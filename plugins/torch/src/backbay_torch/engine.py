"""The engine: torch on one device, eager or compiled. Nothing else in this package knows how tensors are stored.

A storage is a flat tensor of the elements as they are stored; quantized types are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from backbay.plugin import ArrayEngine, ArrayProgram, DType, GraphFunction

from .devices import HOST, TORCH, trial_of

Array = Any  # a torch.Tensor
EAGER = ""  # in place of a compiler's name


class TorchEngine(ArrayEngine):
    """Torch on a device. Dtypes that the device lacks stay on the host, where no op computes with them."""

    xp = torch

    def __init__(self, device: torch.device, compiler: str, *, tf32: bool) -> None:
        self.device, self.compiler = device, compiler
        self.product_precision = "high" if tf32 else "highest"  # in torch's words

    def home(self, dtype: DType) -> torch.device:
        return HOST if dtype in trial_of(self.device).lacks else self.device

    def to_engine(self, data: np.ndarray[Any, Any], dtype: DType) -> Array:
        tensor = torch.from_numpy(data)
        with memory_errors():
            return (tensor.view(TORCH[dtype]) if dtype in TORCH else tensor).to(self.home(dtype))

    def zeros(self, elements: int, dtype: DType) -> Array:
        with memory_errors():
            return torch.zeros(elements, dtype=TORCH.get(dtype, torch.uint8), device=self.home(dtype))

    def to_host(self, storage: Array) -> np.ndarray[Any, Any]:
        storage = whole(storage.cpu())
        flat = storage.as_strided((len(storage),), (1,))  # an empty tensor may have a stride of 0
        host: np.ndarray[Any, Any] = flat.view(torch.uint8).numpy()
        return host

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
        """The program, compiled on its first run."""
        made: list[Any] = [] if self.compiler else [program]

        def run(read: Sequence[Array], written: Sequence[Array]) -> tuple[list[Array], list[Array]]:
            with torch.inference_mode(), self.settings(), memory_errors():
                if not made:
                    # Each program gets a trace of its own: torch.compile would take all for one function, and refuse
                    # to compile it again and again.
                    traced = make_fx(program)(read, written)
                    made.append(torch.compile(traced, backend=self.compiler, fullgraph=True, dynamic=False))
                outputs, values = made[0](read, written)
                return outputs, values

        return run

    @contextmanager
    def settings(self) -> Iterator[None]:
        """While a graph runs: tensors are made on the device, and products have the precision that was asked for."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.product_precision)
        try:
            # The context of a device costs as much as an op.
            with nullcontext() if torch.get_default_device() == self.device else self.device:
                yield
        finally:
            torch.set_float32_matmul_precision(before)


@cache
def engine_for(device: torch.device, compiler: str, *, tf32: bool) -> TorchEngine:
    """The one engine of these settings: backends that share it share its compiled programs."""
    return TorchEngine(device, compiler, tf32=tf32)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn torch's errors about memory into MemoryError."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error):
            raise MemoryError(str(error).partition("\n")[0]) from error
        raise


def whole(storage: Array) -> Array:
    """A storage that begins where its memory begins, as `as_strided` counts from there."""
    if storage.is_contiguous() and not storage.storage_offset():
        return storage
    return storage.clone(memory_format=torch.contiguous_format)
