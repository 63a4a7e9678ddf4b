"""Memory of leaves and weights, each with the tensor by which graphs know it."""

from __future__ import annotations

from typing import final

import numpy as np

from backbay import BackbayError, Buffer
from backbay.encoding import Bytes
from backbay.hostbuffer import GUARD, POISON
from backbay.params import Debug
from backbay.spec import Spec

from .abi import NULL, Ptr, ffi
from .builder import four, leaf_tensor
from .library import Library

UNALLOCATED: Ptr = ffi.cast("void *", 64)  # an address for tensors that are only measured
ALIGNMENT = 32  # what ggml asks of memory that it is given


@final
class LeafBuffer(Buffer):
    """A leaf's memory in host memory of ggml's; fresh bytes are zero, or poison if that is asked for."""

    def __init__(self, library: Library, spec: Spec, debug: Debug) -> None:
        self._lib = library.lib
        self.nbytes = spec.nbytes
        self.tensor = leaf_tensor(spec.dtype, four(spec))
        guard = -(-debug.guard_bytes // ALIGNMENT) * ALIGNMENT
        self._memory = host_memory(library, max(spec.nbytes, ALIGNMENT) + 2 * guard)
        base = ffi.cast("char *", self._lib.ggml_backend_buffer_get_base(self._memory))
        whole = np.frombuffer(ffi.buffer(base, spec.nbytes + 2 * guard), np.uint8)
        self.data: Bytes = whole[guard : guard + spec.nbytes]
        self._guards = (whole[:guard], whole[guard + spec.nbytes :])
        # A cache that was never written is read where the mask hides it; NaN would show through.
        self._lib.ggml_backend_buffer_clear(self._memory, POISON if debug.poison else 0)
        for zone in self._guards:
            zone[:] = GUARD
        self._lib.ggml_backend_tensor_alloc(self._memory, self.tensor, base + guard)

    def check_guards(self) -> None:
        """Raise if something wrote before or behind the data."""
        if not all((zone == GUARD).all() for zone in self._guards):
            raise BackbayError(f"something wrote outside of a leaf of {self.nbytes} bytes")

    def read(self) -> Bytes:
        return self.data

    def write(self, data: Bytes) -> None:
        self.data[:] = data

    def close(self) -> None:
        self.data = np.zeros(0, np.uint8)
        self._guards = (self.data, self.data)
        self._lib.ggml_backend_buffer_free(self._memory)


@final
class WeightBuffer(Buffer):
    """A weight where the file is mapped, or a copy of it where the file does not align it.

    `tensor` is what ops read. `product` is a copy that products take instead, if there is one.
    """

    def __init__(self, library: Library, data: Bytes, spec: Spec, product: Ptr | None = None) -> None:
        self._lib = library.lib
        self.nbytes = spec.nbytes
        self.product = product
        self.tensor = leaf_tensor(spec.dtype, four(spec))
        self.data = data if data.size and data.ctypes.data % ALIGNMENT == 0 else _aligned(data)
        address = ffi.cast("void *", self.data.ctypes.data)
        self._memory = self._lib.ggml_backend_cpu_buffer_from_ptr(address, self.data.size)
        self._lib.ggml_backend_tensor_alloc(self._memory, self.tensor, address)

    def read(self) -> Bytes:
        return self.data[: self.nbytes]

    def write(self, data: Bytes) -> None:
        raise BackbayError("weights are read-only")

    def close(self) -> None:
        self._lib.ggml_backend_buffer_free(self._memory)
        self.data = np.zeros(0, np.uint8)


def host_memory(library: Library, nbytes: int) -> Ptr:
    """A buffer of ggml's in host memory; MemoryError if there is none."""
    made = library.lib.ggml_backend_buft_alloc_buffer(library.lib.ggml_backend_cpu_buffer_type(), nbytes)
    if made == NULL:
        raise MemoryError("ggml got no memory from the system")
    return made


def _aligned(data: Bytes) -> Bytes:
    """A copy that begins where ggml wants tensors to begin; never empty."""
    whole = np.zeros(max(data.size, 1) + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    copy = whole[start : start + max(data.size, 1)]
    copy[: data.size] = data
    return copy
