"""The device: one for the whole process, with its pipelines, which are compiled once."""

from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import wgpu
from numpy.typing import NDArray

from backbay import BackendUnavailableError
from backbay.plugin import Buffer

LIMITS = ("max-buffer-size", "max-storage-buffer-binding-size")
USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST


class Device:
    def __init__(self) -> None:
        adapters = wgpu.gpu.enumerate_adapters_sync()
        if not adapters:
            raise BackendUnavailableError(
                "WebGPU finds no adapter; install a driver, such as mesa-vulkan-drivers"
            )
        kinds = ["DiscreteGPU", "IntegratedGPU", "VirtualGPU", "CPU", "Unknown"]
        adapter = min(adapters, key=lambda one: kinds.index(one.info["adapter_type"]))
        self.name = str(adapter.info["device"])
        self.driver = f"{adapter.info['backend_type']}, {adapter.info['description']}"
        self.largest = min(adapter.limits[limit] for limit in LIMITS)
        self._device = adapter.request_device_sync(required_limits={n: adapter.limits[n] for n in LIMITS})
        self._pipelines: dict[str, Any] = {}
        self._lock = Lock()

    def buffer(self, nbytes: int) -> Any:
        """Memory of the device, zeros at first. Copies of WebGPU take multiples of four bytes."""
        size = max(nbytes + -nbytes % 4, 4)
        if size > self.largest:
            raise MemoryError(f"{self.name} has buffers of at most {self.largest} bytes")
        try:
            return self._device.create_buffer(size=size, usage=USAGE)
        except wgpu.GPUOutOfMemoryError as error:
            raise MemoryError(str(error)) from error

    def read(self, buffer: Any, offset: int, nbytes: int) -> NDArray[np.uint8]:
        if not nbytes:
            return np.zeros(0, np.uint8)
        first, last = offset - offset % 4, offset + nbytes
        data = self._device.queue.read_buffer(buffer, first, last + -last % 4 - first)
        return np.frombuffer(data, np.uint8)[offset - first : last - first]

    def write(self, buffer: Any, data: NDArray[np.uint8]) -> None:
        if data.size:
            self._device.queue.write_buffer(buffer, 0, np.pad(data, (0, -data.size % 4)))

    def pipeline(self, code: str) -> Any:
        with self._lock:
            if code not in self._pipelines:
                compute = {"module": self._device.create_shader_module(code=code), "entry_point": "main"}
                self._pipelines[code] = self._device.create_compute_pipeline(layout="auto", compute=compute)
            return self._pipelines[code]

    def bound(self, pipeline: Any, parts: list[tuple[Any, int, int]]) -> Any:
        """The buffers of a dispatch: each with the offset and size of its part."""
        entries = [
            {"binding": n, "resource": {"buffer": buffer, "offset": offset, "size": size}}
            for n, (buffer, offset, size) in enumerate(parts)
        ]
        return self._device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)

    def encoder(self) -> Any:
        return self._device.create_command_encoder()

    def submit(self, encoder: Any) -> None:
        self._device.queue.submit([encoder.finish()])


@cache
def the_device() -> Device:
    return Device()


class DeviceBuffer(Buffer):
    """The memory of a leaf or a weight."""

    def __init__(self, device: Device, nbytes: int, *, poison: bool = False) -> None:
        self.device, self.nbytes = device, nbytes
        self.buffer = device.buffer(nbytes)
        if poison:
            self.poison()

    def poison(self) -> None:
        self.write(np.full(self.nbytes, 0xFF, np.uint8))

    def read(self) -> NDArray[np.uint8]:
        return self.device.read(self.buffer, 0, self.nbytes)

    def write(self, data: NDArray[np.uint8]) -> None:
        self.device.write(self.buffer, data)

    def close(self) -> None:
        self.buffer.destroy()
