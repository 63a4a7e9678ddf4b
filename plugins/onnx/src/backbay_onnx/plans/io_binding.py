"""The inputs and outputs of a session, bound to memory without ONNX Runtime's slower methods."""

from __future__ import annotations

from typing import Any

from backbay.internals import Array

from ..memory.buffers import DeviceBuffer
from ..session.device import Device
from ..session.providers import HOST_PROVIDER
from ..session.runtime import load_runtime

Memory = Array | DeviceBuffer


class DirectIOBinding:
    """An IOBinding, without its own methods: they look up the device by name for each of hundreds of inputs."""

    def __init__(self, session: Any, device: Device) -> None:
        self.bound = session.io_binding()
        self._inner = self.bound._iobinding
        self._session = session  # must outlive the binding
        make = load_runtime().OrtDevice.make
        self._host, self._device = (
            make(memory, number)._get_c_device()
            for memory, number in ((HOST_PROVIDER.memory, 0), (device.provider.memory, device.number))
        )

    def input(self, name: str, kind: int, shape: tuple[int, ...], at: Memory, begin: int = 0) -> None:
        self._inner.bind_input(name, *self._place(at, kind, shape, begin))

    def output(self, name: str, kind: int, shape: tuple[int, ...], at: Memory, begin: int = 0) -> None:
        self._inner.bind_output(name, *self._place(at, kind, shape, begin))

    def _place(self, at: Memory, kind: int, shape: tuple[int, ...], begin: int) -> tuple[Any, ...]:
        """The place `begin` bytes after the first."""
        if isinstance(at, DeviceBuffer):
            return self._device, kind, shape, at.pointer + begin
        return self._host, kind, shape, at.ctypes.data + begin
