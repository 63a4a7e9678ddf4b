"""Memory that sessions are bound to: of the host, or of a device."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from backbay import Buffer, Debug
from backbay.plugin import POISON, Array, Bytes, HostBuffer

from ..lowering.feeds import Fed
from ..session.device_choice import Device
from ..session.runtime import runtime, translated


class LeafBuffer(HostBuffer):
    """Host memory of a leaf that counts how often the host has written it."""

    generation = 0

    def write(self, data: Bytes) -> None:
        super().write(data)
        self.generation += 1


class DeviceBuffer(Buffer):
    """Memory of a device: each read and write is a copy."""

    def __init__(self, device: Device, nbytes: int, debug: Debug = Debug()) -> None:
        self.device, self.nbytes = device, nbytes
        with translated(f"taking memory of {device.id}"):
            self._value: Any = runtime().OrtValue.ortvalue_from_shape_and_type(
                [max(nbytes, 1)], np.uint8, device.kind, device.number
            )
        if debug.poison:
            self.write(np.full(nbytes, POISON, np.uint8))

    @property
    def pointer(self) -> int:
        return int(self._value.data_ptr())

    def read(self) -> Bytes:
        data: Bytes = np.array(self._value.numpy())  # of a device that is the host itself, it is no copy yet
        return data[: self.nbytes]

    def write(self, data: Bytes) -> None:
        if self.nbytes:
            with translated(f"copying to {self.device.id}"):
                self._value.update_inplace(np.ascontiguousarray(data))

    def close(self) -> None:
        self._value = None


class Binding:
    """An IOBinding. Its own methods look the device up by name for each of hundreds of inputs."""

    def __init__(self, session: Any, device: Device) -> None:
        self.bound = session.io_binding()
        self._inner = self.bound._iobinding
        make = runtime().OrtDevice.make
        self._host, self._there = (
            make(kind, number)._get_c_device() for kind, number in (("cpu", 0), (device.kind, device.number))
        )

    def numbers(self, fed: Fed) -> None:
        """All that is fed, with one look at where it lies."""
        base = fed.numbers.ctypes.data
        for name, shape, first in fed.places:
            self._inner.bind_input(name, self._host, TensorProto.INT64, shape, base + 8 * first)
        for name, grid in fed.grids.items():
            self.input(name, TensorProto.INT64, grid.shape, grid)

    def input(
        self, name: str, kind: int, shape: tuple[int, ...], at: Array | DeviceBuffer, begin: int = 0
    ) -> None:
        self._inner.bind_input(name, *self._place(at, kind, shape, begin))

    def output(
        self, name: str, kind: int, shape: tuple[int, ...], at: Array | DeviceBuffer, begin: int = 0
    ) -> None:
        self._inner.bind_output(name, *self._place(at, kind, shape, begin))

    def _place(
        self, at: Array | DeviceBuffer, kind: int, shape: tuple[int, ...], begin: int
    ) -> tuple[Any, ...]:
        """`begin` bytes behind the first."""
        if isinstance(at, DeviceBuffer):
            return self._there, kind, shape, at.pointer + begin
        return self._host, kind, shape, at.ctypes.data + begin
