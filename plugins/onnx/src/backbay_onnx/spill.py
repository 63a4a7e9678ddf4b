"""Large arrays in files without a name, so that the system can drop what nobody reads any more."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import tempfile
from pathlib import Path

import numpy as np

from backbay.encoding import Bytes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only the GNU C library has it

LEAST = 1 << 20  # smaller arrays are not worth a file


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
    if _trim is not None:
        _trim(0)
