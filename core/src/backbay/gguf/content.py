"""The bytes of one model file, and whether the file is still as it was when it was opened."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import threading
import weakref
from mmap import ACCESS_READ, PAGESIZE, mmap
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from backbay.errors import ModelFileError

if sys.platform == "linux":
    from mmap import MADV_DONTNEED

REFUSED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the system has no room for one more file
REMEDY = "load it again; with the option weights=copied a file may change once it is loaded"


@final
class Content:
    """The bytes of one file: its header is read, its weights are mapped.

    If a mapped file shrinks, access to a lost page ends the process (SIGBUS); if it is overwritten, results are wrong.
    So `check` compares the file with its state on opening, by a descriptor of its own: a file of the same name that
    replaces this one changes nothing.
    """

    def __init__(self, path: Path, number: int) -> None:
        """Take the open file of a descriptor, which this object closes in the end."""
        self.path = path
        self._number = number
        weakref.finalize(self, os.close, number)
        self._stream = io.FileIO(number, closefd=False)
        self._reading = threading.Lock()
        status = os.fstat(number)
        self.size, self._written = status.st_size, status.st_mtime_ns
        if not self.size:
            raise ModelFileError(path, 0, "the magic GGUF", "an empty file")
        self._map = mmap(number, self.size, access=ACCESS_READ)
        self.mapped: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def check(self) -> None:
        """Raise ModelFileError if the file was changed since it was opened."""
        try:
            now = os.fstat(self._number)
        except OSError as error:  # such as a file of a server that is gone
            raise self._changed("an open file", error.strerror or error) from error
        if now.st_size != self.size:
            expected = f"the {self.size} bytes that it had when it was opened"
            raise self._changed(expected, f"{now.st_size} bytes")
        if now.st_mtime_ns != self._written:
            raise self._changed("no change since it was opened", "a later modification time")

    def drop_pages(self, offset: int, nbytes: int) -> None:
        """Let the system drop the whole pages of a range; a later read loads them again."""
        first, end = -(-offset // PAGESIZE) * PAGESIZE, (offset + nbytes) // PAGESIZE * PAGESIZE
        if end > first and sys.platform == "linux":
            self._map.madvise(MADV_DONTNEED, first, end - first)

    def read(self, offset: int, target: memoryview) -> None:
        """Fill `target` from the file, which may shrink meanwhile: a ModelFileError, as mapped pages are not touched."""
        done = 0
        with self._reading:
            try:
                self._stream.seek(offset)
                while done < len(target) and (count := self._stream.readinto(target[done:])):
                    done += count
            except OSError as error:
                expected = f"{len(target)} readable bytes"
                raise ModelFileError(self.path, offset, expected, error.strerror or error) from error
        if done < len(target):
            found = f"{done} before the end of the file, which shrank"
            raise ModelFileError(self.path, offset, f"{len(target)} bytes", f"{found}; {REMEDY}")

    def _changed(self, expected: str, found: object) -> ModelFileError:
        return ModelFileError(self.path, None, expected, f"{found}; {REMEDY}")


def open_content(path: Path, role: str) -> Content:
    """Open a file. If it cannot be read, the error says that `role` was expected."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # checked before opening: opening a pipe would block
            raise ModelFileError(path, None, role, f"{stat.filemode(mode)}, not a regular file")
        with path.open("rb", buffering=0) as stream:
            return Content(path, os.dup(stream.fileno()))
    except ModelFileError:
        raise
    except (OSError, ValueError, OverflowError) as error:
        # ValueError: the path contains NUL, or the file shrank after fstat.
        if isinstance(error, OSError) and error.errno in REFUSED:  # not the file's fault
            raise
        raise ModelFileError(path, None, role, getattr(error, "strerror", None) or error) from error
