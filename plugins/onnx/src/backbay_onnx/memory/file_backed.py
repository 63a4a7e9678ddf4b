"""Large arrays in files without a name, so that the system can drop pages that nobody reads any more."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from backbay.internals import Bytes

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
