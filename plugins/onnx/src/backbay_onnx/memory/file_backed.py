"""Large arrays in files without a name, so that the system can drop what nobody reads any more."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import tempfile
from pathlib import Path

import numpy as np

from backbay.plugin import Bytes

LIBC = ctypes.CDLL(None)
LEAST = 1 << 20  # smaller arrays are not worth a file
MMAP_THRESHOLD = -3  # as <malloc.h> of the GNU C library has it


class Spill:
    """ONNX Runtime keeps a packed copy of quantized weights for itself; what it was made from is needed for the
    next session only. Memory of a mapped file, unlike our own, can be given back and read again later.

    Without room for files, arrays are plain memory.
    """

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def empty(self, nbytes: int) -> Bytes:
        folder = Path(tempfile.gettempdir())
        if nbytes < LEAST or shutil.disk_usage(folder).free < 2 * nbytes:
            return np.empty(nbytes, np.uint8)
        with tempfile.TemporaryFile(prefix="backbay-onnx-", dir=folder) as file:
            file.truncate(nbytes)
            self._maps.append(mmap.mmap(file.fileno(), nbytes))
        return np.frombuffer(self._maps[-1], np.uint8)

    def relax(self) -> None:
        """Let go of the pages; they come back when they are read."""
        for mapped in self._maps:
            mapped.flush()
            mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        # The maps are dropped, not closed: the last array that looks into one unmaps it.
        self._maps.clear()


def give_back() -> None:
    """Hand what the C library has kept of freed memory to the system: after loading it is as much as a model."""
    if hasattr(LIBC, "malloc_trim"):  # only the GNU C library has it
        LIBC.malloc_trim(0)


def return_large_blocks() -> None:
    """Let the C library hand large blocks back at once, in all of the process.

    It would raise that limit to 32 MiB by itself, and seldom use freed blocks again, as ONNX Runtime wants them
    aligned: a first run then takes several times what it works in.
    """
    if hasattr(LIBC, "mallopt"):
        LIBC.mallopt(MMAP_THRESHOLD, LEAST)
