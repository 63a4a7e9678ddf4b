"""Arrays of strings, decoded on access."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final, overload

from backbay.errors import ModelFileError
from backbay.types.cached import cached_property

from .cursor import Cursor
from .layout import MAX_STRING_BYTES, U64, unsigned


@final
class Strings(Sequence[str]):
    """An array of strings in a file. Bytes that are not UTF-8 become surrogates, as in file names:
    `text.encode("utf-8", "surrogateescape")` returns the exact bytes of the file."""

    def __init__(self, path: Path, buffer: bytes, start: int, count: int) -> None:
        self._path, self._buffer, self._start, self._count = path, buffer, start, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._at(offset) for offset in self._offsets[index]]
        return self._at(self._offsets[index])

    def __iter__(self) -> Iterator[str]:
        buffer, offset, length_at = self._buffer, self._start, U64.unpack_from
        for _ in range(self._count):
            end = offset + 8 + length_at(buffer, offset)[0]
            yield decode(self._path, buffer, offset + 8, end)
            offset = end

    def __repr__(self) -> str:
        return f"<{self._count} strings of {self._path.name}>"

    def _at(self, offset: int) -> str:
        start = offset + 8
        return decode(self._path, self._buffer, start, start + U64.unpack_from(self._buffer, offset)[0])

    @cached_property
    def _offsets(self) -> array[int]:
        # Only indexing needs the offsets; opening a file and iterating do not.
        offsets, offset = array("q"), self._start
        buffer, length_at, append = self._buffer, U64.unpack_from, offsets.append
        for _ in range(self._count):
            append(offset)
            offset += 8 + length_at(buffer, offset)[0]
        return offsets


def decode(path: Path, buffer: bytes, start: int, end: int) -> str:
    if end - start > MAX_STRING_BYTES:
        expected = f"a string of at most {MAX_STRING_BYTES} bytes"
        raise ModelFileError(path, start - 8, expected, f"a length of {end - start}")
    return buffer[start:end].decode("utf-8", "surrogateescape")


def skip_strings(cursor: Cursor, count: int, what: str) -> None:
    """Step over `count` strings. Every length is checked here, so reading them later needs no checks."""
    # Without the cursor's methods: calling them for 256k strings would take most of the time of opening a file.
    buffer, size, length_at = cursor.buffer, cursor.size, U64.unpack_from
    offset, last, ready = cursor.offset, cursor.size - 8, len(cursor.buffer) - 8
    for index in range(count):
        if offset > ready:
            if offset > last:
                found = f"{size - offset} bytes before the end of the file"
                raise cursor.error(offset, f"the length of string {index} of {what}", found)
            cursor.read_to(offset + 8)
            ready = len(buffer) - 8
        length = length_at(buffer, offset)[0]
        if length > last - offset:
            expected = f"string {index} of {what} to fit in the {last - offset} bytes that remain"
            raise cursor.error(offset, expected, f"a length of {unsigned(length)}")
        offset += 8 + length
    cursor.skip(offset - cursor.offset, what)
