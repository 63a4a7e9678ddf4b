"""The bytes of one model file, as it was when it was opened, and a cursor that reads the fields of its header in order."""

from __future__ import annotations

import errno
import io
import os
import struct
import sys
import threading
import weakref
from contextlib import suppress
from enum import IntEnum
from mmap import ACCESS_READ, PAGESIZE, mmap
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from backbay.errors import ModelFileError
from backbay.regular_files import open_regular

if sys.platform == "linux":
    from mmap import MADV_DONTNEED, MADV_HUGEPAGE

HUGE_PAGE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")  # of Linux; its bytes
MOST_READ = 2 << 20  # bytes that a first access to a page may read
REFUSED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the system has no room for one more file
REMEDY = "load it again; with the option weights=copied a file may change once it is loaded"

# Whatever a file claims, such bounds, here and beside what they bound, limit time and memory; no real file comes near
# them. The file's own size limits its claims too, so the bounds matter for sparse files of terabytes.
MAX_HEADER_BYTES = 1 << 27  # a header is held in memory; large vocabularies take some 20 MB
MAX_SIGNED = (1 << 63) - 1
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
# The codes of the module `struct`, by GGUF's numbers. A boolean is a byte: "?" would read 2 as True.
_CODES = {**dict(enumerate("BbHhIifB")), 10: "Q", 11: "q", 12: "d"}
FIRST_BYTES = 1 << 18


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
        self._ask_for_huge_pages()
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

    def _ask_for_huge_pages(self) -> None:
        """Let the system read the file in pages of 2 MiB: of 4 KiB, the processor looks up one for each few rows of weights.

        Where huge pages are larger, as on some ARM systems, a few rows would read hundreds of MiB.
        """
        if sys.platform == "linux":
            with suppress(OSError, ValueError):  # a kernel without them
                if int(HUGE_PAGE.read_text()) <= MOST_READ:
                    self._map.madvise(MADV_HUGEPAGE)

    def _changed(self, expected: str, found: object) -> ModelFileError:
        return ModelFileError(self.path, None, expected, f"{found}; {REMEDY}")


def open_content(path: Path, role: str) -> Content:
    """Open a file. If it cannot be read, the error says that `role` was expected."""
    try:
        with open_regular(path) as stream:
            return Content(path, os.dup(stream.fileno()))
    except ModelFileError:
        raise
    except (OSError, ValueError, OverflowError) as error:
        # ValueError: the file shrank after fstat.
        if isinstance(error, OSError) and error.errno in REFUSED:  # not the file's fault
            raise
        raise ModelFileError(path, None, role, getattr(error, "strerror", None) or error) from error


class ValueType(IntEnum):
    """The type of a metadata value, with GGUF's numbers."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALARS = {ValueType(number): struct.Struct(f"<{code}") for number, code in _CODES.items()}


def unsigned(number: int) -> str:
    """A 64-bit field as text; a huge number, which is mostly a negative one, is shown with its signed value."""
    return str(number) if number <= MAX_SIGNED else f"{number} ({number - (1 << 64)} if signed)"


@final
class Cursor:
    """A position in a file. Every read checks first that the bytes are there.

    `buffer` holds the bytes that were read so far, from the file's beginning: at least those before the cursor.
    """

    def __init__(self, content: Content) -> None:
        self.path, self.size = content.path, content.size
        self._content = content
        self.buffer = bytearray()
        self.offset = 0

    @property
    def remaining(self) -> int:
        return self.size - self.offset

    def error(self, at: int, expected: str, found: str) -> ModelFileError:
        return ModelFileError(self.path, at, expected, found)

    def skip(self, count: int, what: str) -> int:
        """Step over `count` bytes and return their offset."""
        start = self.offset
        if count > self.size - start:
            found = f"{self.size - start} bytes before the end of the file"
            raise self.error(start, f"{unsigned(count)} bytes of {what}", found)
        self.offset = start + count
        self.read_to(self.offset)
        return start

    def read_to(self, end: int) -> None:
        """Read on, at least to `end`; the file holds so many bytes."""
        have = len(self.buffer)
        if end <= have:
            return
        if end > MAX_HEADER_BYTES:
            expected = f"a header of at most {MAX_HEADER_BYTES} bytes"
            raise self.error(self.offset, expected, f"one of at least {unsigned(end)}")
        more = bytearray(min(max(end, 2 * have, FIRST_BYTES), self.size, MAX_HEADER_BYTES) - have)
        self._content.read(have, memoryview(more))
        self.buffer += more

    @property
    def header(self) -> bytes:
        return bytes(memoryview(self.buffer)[: self.offset])

    def take(self, count: int, what: str) -> bytes:
        start = self.skip(count, what)
        return bytes(self.buffer[start : start + count])

    def uint32(self, what: str) -> int:
        number: int = U32.unpack_from(self.buffer, self.skip(4, what))[0]
        return number

    def uint64(self, what: str) -> int:
        number: int = U64.unpack_from(self.buffer, self.skip(8, what))[0]
        return number

    def length(self, limit: int, what: str) -> int:
        """Read the length of a string; it must be within `limit`, and the string within the file."""
        start = self.offset
        length = self.uint64(f"the length of {what}")
        if length > self.remaining:
            expected = f"{what} to fit in the {self.remaining} bytes that remain"
            raise self.error(start, expected, f"a length of {unsigned(length)}")
        if length > limit:
            raise self.error(start, f"{what} to have at most {limit} bytes", f"a length of {length}")
        return length

    def name(self, limit: int, what: str) -> str:
        """Read a key or a tensor's name: UTF-8, not empty, without NUL, which would end it in C."""
        start = self.offset
        raw = self.take(self.length(limit, what), what)
        if not raw or b"\0" in raw:
            raise self.error(start, f"{what} to be a name", repr(raw[:40]))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            found = f"{raw[:40]!r} ({error.reason} at position {error.start})"
            raise self.error(start, f"{what} to be UTF-8", found) from None
