"""Memory of leaves and weights: of the host, or of a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import Buffer, Debug
from backbay.internals import POISON, Bytes
from backbay.plugin import HostBuffer

from ..session.device import Device
from ..session.runtime import runtime, translated


class LeafBuffer(HostBuffer):
    """Host memory of a leaf; `generation` counts the writes by the host."""

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
                [max(nbytes, 1)], np.uint8, device.provider.memory, device.number
            )
        if debug.poison:
            self.write(np.full(nbytes, POISON, np.uint8))

    @property
    def pointer(self) -> int:
        return int(self._value.data_ptr())

    def read(self) -> Bytes:
        data: Bytes = np.array(self._value.numpy())  # a copy also where the device is the host itself
        return data[: self.nbytes]

    def write(self, data: Bytes) -> None:
        if self.nbytes:
            with translated(f"copying to {self.device.id}"):
                self._value.update_inplace(np.ascontiguousarray(data))

    def close(self) -> None:
        self._value = None
