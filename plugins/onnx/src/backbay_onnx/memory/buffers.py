"""Memory of leaves and weights: of the host, of a device, or of files without a name."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from backbay import Buffer, Debug
from backbay.internals import POISON, Bytes
from backbay.plugin import HostBuffer

from ..session.device import Device
from ..session.runtime import load_runtime, translate_errors


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
        with translate_errors(f"taking memory of {device.id}"), device.alone():
            self._value: Any = load_runtime().OrtValue.ortvalue_from_shape_and_type(
                [max(nbytes, 1)], np.uint8, device.provider.memory, device.number
            )
        if debug.poison:
            self.write(np.full(nbytes, POISON, np.uint8))

    @property
    def pointer(self) -> int:
        return int(self._value.data_ptr())

    def read(self) -> Bytes:
        with self.device.alone():
            data: Bytes = np.array(self._value.numpy())  # a copy also where the device is the host itself
        return data[: self.nbytes]

    def write(self, data: Bytes) -> None:
        if self.nbytes:
            with translate_errors(f"copying to {self.device.id}"), self.device.alone():
                self._value.update_inplace(np.ascontiguousarray(data))

    def close(self) -> None:
        with self.device.alone():
            self._value = None


LEAST = 1 << 20  # smaller arrays are not worth a file


class FileBackedMemory:
    """Arrays in mapped files: unlike our own memory, the system can drop their pages and read them again.

    ONNX Runtime keeps a copy of packed weights for each session, so ours are only read when a session is made.
    Without room for files, arrays are plain memory.
    """

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def empty(self, nbytes: int) -> Bytes:
        if nbytes < LEAST:
            return np.empty(nbytes, np.uint8)
        try:
            folder = Path(tempfile.gettempdir())
            if shutil.disk_usage(folder).free < 2 * nbytes:
                return np.empty(nbytes, np.uint8)
            with tempfile.TemporaryFile(prefix="backbay-onnx-", dir=folder) as file:
                _take_room(file.fileno(), nbytes)
                self._maps.append(mmap.mmap(file.fileno(), nbytes))
        except OSError:  # no folder that can be written, too many open files, or files may not be as large
            return np.empty(nbytes, np.uint8)
        return np.frombuffer(self._maps[-1], np.uint8)

    def drop_pages(self) -> None:
        """Free the memory; the pages come back when they are read."""
        for mapped in self._maps:
            mapped.flush()
            if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
                mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        # The maps are dropped, not closed: the last array that looks into one unmaps it.
        self._maps.clear()


def _take_room(file: int, nbytes: int) -> None:
    """Make a file as large, with room on the disk: a full disk would end the process at a later write to the map."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, nbytes)
    else:
        os.truncate(file, nbytes)
