"""A cursor that reads the fields of a header in order, never past the end of the file."""

from __future__ import annotations

from typing import final

from backbay.errors import ModelFileError

from .content import Content
from .layout import MAX_HEADER_BYTES, U32, U64, unsigned

FIRST_BYTES = 1 << 18


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
        """The bytes before the cursor."""
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
