"""Memory of leaves and weights, each with the ggml tensor that graphs refer to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import final

import numpy as np

from backbay import BackbayError, Buffer, Debug, DType, GuardZoneError, Spec
from backbay.internals import GUARD, POISON, Bytes

from ..devices.device import WEIGHTS, Device, rounded_up
from ..library.abi import NULL, Ptr, ffi, leaf_tensor
from ..library.library import Library

ALIGNMENT = 32  # bytes; ggml requires it of memory that it does not allocate


class TensorBuffer(Buffer):
    """Memory on a device, with the tensor that ops read, and perhaps a copy that products read instead."""

    tensor: Ptr
    device: Device
    product: tuple[Ptr, Device] | None = None

    @abstractmethod
    def check_guards(self) -> None:
        """GuardZoneError if something wrote before or behind the data."""


@final
class LeafBuffer(TensorBuffer):
    """A leaf in host memory, at first filled with zeros, or with poison for debugging."""

    def __init__(self, library: Library, device: Device, spec: Spec, debug: Debug) -> None:
        self._lib, self.device = library.lib, device
        self.nbytes = spec.nbytes
        self.tensor = leaf_tensor(spec.dtype, spec.shape)
        guard = rounded_up(debug.guard_bytes, ALIGNMENT)
        self._memory = host_memory(library, max(spec.nbytes, ALIGNMENT) + 2 * guard)
        base = ffi.cast("char *", self._lib.ggml_backend_buffer_get_base(self._memory))
        whole = np.frombuffer(ffi.buffer(base, spec.nbytes + 2 * guard), np.uint8)
        self.data: Bytes = whole[guard : guard + spec.nbytes]
        self._guards = (whole[:guard], whole[guard + spec.nbytes :])
        # Attention reads unwritten parts of a cache behind the mask, where NaN would show through; zeros do not.
        self._lib.ggml_backend_buffer_clear(self._memory, POISON if debug.poison else 0)
        for zone in self._guards:
            zone[:] = GUARD
        self._lib.ggml_backend_tensor_alloc(self._memory, self.tensor, base + guard)

    def check_guards(self) -> None:
        _check_zones(self._guards, self.nbytes)

    def read(self) -> Bytes:
        return self.data

    def write(self, data: Bytes) -> None:
        self.data[:] = data

    def close(self) -> None:
        self.data = np.zeros(0, np.uint8)
        self._guards = (self.data, self.data)
        self._lib.ggml_backend_buffer_free(self._memory)


@final
class DeviceLeafBuffer(TensorBuffer):
    """A leaf on a device that is not the CPU; its bytes are copied when they are read or written."""

    def __init__(self, library: Library, device: Device, spec: Spec, debug: Debug) -> None:
        self._lib, self.device = library.lib, device
        self.nbytes = spec.nbytes
        self.tensor = leaf_tensor(spec.dtype, spec.shape)
        guard = rounded_up(debug.guard_bytes, device.alignment)
        size = max(device.size(self.tensor), device.alignment)
        self._memory = device.allocate(size + 2 * guard)
        self._zones = [leaf_tensor(DType.I8, (guard,)) for _ in range(2)] if guard else []
        with device.turn(), device.session():
            self._lib.ggml_backend_buffer_clear(self._memory, POISON if debug.poison else 0)
            base = ffi.cast("char *", self._lib.ggml_backend_buffer_get_base(self._memory))
            self._lib.ggml_backend_tensor_alloc(self._memory, self.tensor, base + guard)
            for zone, offset in zip(self._zones, (0, guard + size), strict=False):
                self._lib.ggml_backend_tensor_alloc(self._memory, zone, base + offset)
                self._set(zone, np.full(guard, GUARD, np.uint8))

    def check_guards(self) -> None:
        with self.device.turn(), self.device.session():
            zones = [self._get(zone, zone.ne[0]) for zone in self._zones]
        _check_zones(zones, self.nbytes)

    def read(self) -> Bytes:
        with self.device.turn(), self.device.session():
            return self._get(self.tensor, self.nbytes)

    def write(self, data: Bytes) -> None:
        with self.device.turn(), self.device.session():
            self._set(self.tensor, np.ascontiguousarray(data))

    def close(self) -> None:
        memory, lib = self._memory, self._lib
        self.device.free(lambda: lib.ggml_backend_buffer_free(memory))

    def _get(self, tensor: Ptr, nbytes: int) -> Bytes:
        data = np.empty(nbytes, np.uint8)
        self._lib.ggml_backend_tensor_get(tensor, ffi.from_buffer(data), 0, nbytes)
        return data

    def _set(self, tensor: Ptr, data: Bytes) -> None:
        self._lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(data), 0, data.size)


@final
class WeightBuffer(TensorBuffer):
    """A weight in the mapped file, or a copy of it if the file does not align it; or in the memory of a device."""

    def __init__(
        self,
        library: Library,
        device: Device,
        data: Bytes,
        spec: Spec,
        *,
        placed: Ptr | None = None,
        product: tuple[Ptr, Device] | None = None,
    ) -> None:
        self._lib, self.device, self.product = library.lib, device, product
        self.nbytes, self.data = spec.nbytes, data
        self._memory: Ptr = NULL
        self.tensor = leaf_tensor(spec.dtype, spec.shape) if placed is None else placed
        if placed is None:
            self.data = data if data.size and data.ctypes.data % ALIGNMENT == 0 else _aligned(data)
            address = ffi.cast("void *", self.data.ctypes.data)
            self._memory = self._lib.ggml_backend_cpu_buffer_from_ptr(address, self.data.size)
            self._lib.ggml_backend_buffer_set_usage(self._memory, WEIGHTS)
            self._lib.ggml_backend_tensor_alloc(self._memory, self.tensor, address)

    def check_guards(self) -> None:
        """Weights have no guard zones."""

    def read(self) -> Bytes:
        return self.data[: self.nbytes]

    def write(self, data: Bytes) -> None:
        raise BackbayError("weights are read-only")

    def close(self) -> None:
        self._lib.ggml_backend_buffer_free(self._memory)
        self.data = np.zeros(0, np.uint8)


def host_memory(library: Library, nbytes: int) -> Ptr:
    """A ggml buffer in host memory; MemoryError if it does not fit."""
    made = library.lib.ggml_backend_buft_alloc_buffer(library.lib.ggml_backend_cpu_buffer_type(), nbytes)
    if made == NULL:
        raise MemoryError("ggml got no memory from the system")
    return made


def _check_zones(zones: Sequence[Bytes], nbytes: int) -> None:
    if not all((zone == GUARD).all() for zone in zones):
        raise GuardZoneError(f"something wrote outside of a leaf of {nbytes} bytes")


def _aligned(data: Bytes) -> Bytes:
    whole = np.zeros(max(data.size, 1) + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    copy = whole[start : start + max(data.size, 1)]
    copy[: data.size] = data
    return copy
