"""Weights in the memory of devices other than the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from backbay import Spec
from backbay.gguf import ModelFile, TensorInfo
from backbay.plugin import Cancel, Progress, check_cancel

from ..devices.device import WEIGHTS, Device
from ..library.abi import Ptr, ffi
from ..library.library import Library
from ..tensors.layouts import leaf_tensor_of


@final
class DeviceWeights:
    """The weights of a model that lie on devices, and devices' copies of weights that lie on the host."""

    def __init__(self, library: Library, model: ModelFile) -> None:
        self._lib, self._model = library.lib, model
        self._buffers: list[tuple[Device, Ptr]] = []
        self._placed: dict[str, tuple[Ptr, Device]] = {}

    def size(self, device: Device, infos: Iterable[TensorInfo]) -> int:
        """The bytes that weights take on a device."""
        return sum(device.size(_tensor(info)) for info in infos)

    def allocate(self, device: Device, infos: list[TensorInfo]) -> None:
        """Allocate weights in one buffer; MemoryError if the device has no room."""
        tensors = [_tensor(info) for info in infos]
        sizes = [device.size(tensor) for tensor in tensors]
        memory = device.allocate(sum(sizes) + device.alignment)
        self._buffers.append((device, memory))
        with device.turn(), device.session():
            self._lib.ggml_backend_buffer_set_usage(memory, WEIGHTS)
            place = ffi.cast("char *", self._lib.ggml_backend_buffer_get_base(memory))
            for info, tensor, size in zip(infos, tensors, sizes, strict=True):
                self._lib.ggml_backend_tensor_alloc(memory, tensor, place)
                self._placed[info.name] = tensor, device
                place += size

    def find(self, name: str) -> tuple[Ptr, Device] | None:
        """A weight's tensor and device, if one holds it."""
        return self._placed.get(name)

    @property
    def nbytes(self) -> int:
        """Bytes to be read from the file."""
        return sum(self._model.tensors[name].nbytes for name in self._placed)

    def load(self, progress: Progress, cancel: Cancel | None) -> None:
        """Send the weights from the file to their devices."""
        done = 0
        for name, (tensor, device) in self._placed.items():
            check_cancel(cancel)
            data = self._model.data(name)
            with device.turn(), device.session():
                self._lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(data), 0, data.size)
            done += data.size
            progress(done / self.nbytes)
        for device in {device for device, _ in self._buffers}:
            device.memory()  # a server answers once it has received all that was sent before

    def close(self) -> None:
        for device, memory in self._buffers:
            device.free(lambda memory=memory: self._lib.ggml_backend_buffer_free(memory))  # type: ignore[misc]
        self._buffers.clear()
        self._placed.clear()


def _tensor(info: TensorInfo) -> Ptr:
    return leaf_tensor_of(Spec(info.dtype, info.shape))
