"""The engine: torch on one device, eager or compiled. Nothing else in this package knows how tensors are stored.

A storage is a flat tensor of the elements as they are stored; quantized types are bytes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from backbay.plugin import ArrayEngine, ArrayProgram, DType, GraphFunction

from .devices import HOST, TORCH, trial_of

Array = Any  # a torch.Tensor
EAGER, INDUCTOR = "", "inductor"  # compilers; the first is none
EXACT = {"emulate_precision_casts": True}  # else inductor leaves out roundings to f16 and bf16
_COMPILING = threading.RLock()


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
        return self.whole(storage).as_strided(shape, strides, offset)

    def whole(self, storage: Array) -> Array:
        return whole(storage, longer if self.compiler == INDUCTOR else packed)

    def written(
        self, storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], value: Array
    ) -> Array:
        return torch.as_strided_scatter(self.whole(storage), value, shape, strides, offset)

    def compiled(self, program: ArrayProgram) -> GraphFunction:
        """The program, compiled on its first run."""
        made: list[Any] = [] if self.compiler else [program]

        def run(read: Sequence[Array], written: Sequence[Array]) -> tuple[list[Array], list[Array]]:
            with (
                torch.inference_mode(),
                self.settings(),
                memory_errors(),
                nullcontext() if made else one_compiles(),
            ):
                if not made:
                    made.append(self._traced(program, read, written))
                outputs, values = made[0](read, written)  # the first call compiles
                return outputs, values

        return run

    def _traced(self, program: ArrayProgram, read: Sequence[Array], written: Sequence[Array]) -> Any:
        # Each program gets a trace of its own: torch.compile would take all for one function, and refuse to compile it
        # again and again.
        traced = make_fx(program, tracing_mode="fake")(read, written)
        options = EXACT if self.compiler == INDUCTOR else None
        return torch.compile(traced, backend=self.compiler, fullgraph=True, dynamic=False, options=options)

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
def one_compiles() -> Iterator[None]:
    """Torch traces one program at a time, and inductor changes Python's limit of recursion."""
    limit = sys.getrecursionlimit()
    with _COMPILING:
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn torch's errors about memory into MemoryError."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error):
            raise MemoryError(str(error).partition("\n")[0]) from error
        raise


def packed(x: Array) -> Array:
    return x.clone(memory_format=torch.contiguous_format)


def longer(storage: Array) -> Array:
    """A copy that inductor does not take for the storage: in a view, `as_strided` would count from where its memory begins."""
    return torch.cat([storage, storage[:1]])[: len(storage)]


def whole(storage: Array, copy: Callable[[Array], Array] = packed) -> Array:
    """A storage that begins where its memory begins, as `as_strided` counts from there."""
    return storage if storage.is_contiguous() and not storage.storage_offset() else copy(storage)
