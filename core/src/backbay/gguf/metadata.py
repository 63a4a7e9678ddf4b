"""The keys and values of a header: checked when a file is opened, decoded on access."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final, overload

import numpy as np
import numpy.typing as npt

from backbay.errors import ModelFileError
from backbay.types.fork_safety import cached_property

from .content import SCALARS, U64, Cursor, ValueType, unsigned

MAX_KEY_BYTES = (1 << 16) - 1  # the specification's limit
MAX_ELEMENTS = 1 << 22  # of all arrays together; a vocabulary of 256k tokens with its merges has 1.3 million
MAX_STRING_BYTES = 1 << 26  # twice the size of a whole tokenizer.json in a value


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
            yield decode_string(self._path, buffer, offset + 8, end)
            offset = end

    def __repr__(self) -> str:
        return f"<{self._count} strings of {self._path.name}>"

    def _at(self, offset: int) -> str:
        start = offset + 8
        return decode_string(
            self._path, self._buffer, start, start + U64.unpack_from(self._buffer, offset)[0]
        )

    @cached_property
    def _offsets(self) -> array[int]:
        # Only indexing needs the offsets; opening a file and iterating do not.
        offsets, offset = array("q"), self._start
        buffer, length_at, append = self._buffer, U64.unpack_from, offsets.append
        for _ in range(self._count):
            append(offset)
            offset += 8 + length_at(buffer, offset)[0]
        return offsets


def decode_string(path: Path, buffer: bytes, start: int, end: int) -> str:
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


Value: TypeAlias = bool | int | float | str | Strings | npt.NDArray[Any]


@final
@dataclass(frozen=True, slots=True)
class ValuePosition:
    """The position of a value in the file. For an array, `type` is the element type; otherwise `count` is None."""

    type: ValueType
    offset: int  # of the value; of an array's first element
    end: int
    count: int | None


@final
class Metadata(Mapping[str, Value]):
    """The keys and values of one file, in its order. Numeric arrays are views of its header, strings decode on access."""

    def __init__(self, path: Path, buffer: bytes, entries: Mapping[str, ValuePosition]) -> None:
        self._path, self._buffer, self._entries = path, buffer, entries
        self._strings: dict[str, Strings] = {}  # cached, so that each array's offsets are scanned once

    def __getitem__(self, key: str) -> Value:
        entry = self._entries[key]
        if entry.count is None:
            if entry.type is ValueType.STRING:
                return decode_string(self._path, self._buffer, entry.offset, entry.end)
            value: int | float = SCALARS[entry.type].unpack_from(self._buffer, entry.offset)[0]
            return bool(value) if entry.type is ValueType.BOOL else value
        if entry.type is ValueType.STRING:
            array = Strings(self._path, self._buffer, entry.offset, entry.count)
            return self._strings.setdefault(key, array)
        return self._numbers(key, entry, entry.count)

    def value_type(self, key: str) -> ValueType:
        """The type of a value, or of an array's elements."""
        return self._entries[key].type

    def __contains__(self, key: object) -> bool:
        return key in self._entries  # Mapping's own method would decode the value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _numbers(self, key: str, entry: ValuePosition, count: int) -> npt.NDArray[Any]:
        dtype = np.dtype(SCALARS[entry.type].format)
        numbers: npt.NDArray[Any] = np.frombuffer(self._buffer, dtype, count, entry.offset)
        if entry.type is not ValueType.BOOL:
            return numbers
        if numbers.max(initial=0) > 1:
            index = int(np.argmax(numbers > 1))
            expected = f"0 or 1 as element {index} of {key!r}"
            raise ModelFileError(self._path, entry.offset + index, expected, int(numbers[index]))
        return numbers.view(np.bool_)


def read_entries(cursor: Cursor, count: int) -> dict[str, ValuePosition]:
    """Read and check all keys and values. No value is decoded; only the entries take memory."""
    entries: dict[str, ValuePosition] = {}
    room = MAX_ELEMENTS
    for index in range(count):
        at = cursor.offset
        key = cursor.name(MAX_KEY_BYTES, f"key {index}")
        if key in entries:
            found = f"it again (its first value is at byte {entries[key].offset})"
            raise cursor.error(at, f"no second key {key!r}", found)
        entries[key] = entry = _read_value(cursor, key, room)
        room -= entry.count or 0
    return entries


def _read_value(cursor: Cursor, key: str, room: int) -> ValuePosition:
    kind = _value_type(cursor, f"the type of {key!r}")
    if kind is ValueType.ARRAY:
        return _read_array(cursor, key, room)
    if kind is ValueType.STRING:
        length = cursor.length(MAX_STRING_BYTES, f"the value of {key!r}")
        start = cursor.skip(length, f"the value of {key!r}")
    else:
        start = cursor.skip(SCALARS[kind].size, f"the value of {key!r}")
    if kind is ValueType.BOOL and cursor.buffer[start] > 1:
        raise cursor.error(start, f"0 or 1 as the boolean {key!r}", str(cursor.buffer[start]))
    return ValuePosition(kind, start, cursor.offset, None)


def _read_array(cursor: Cursor, key: str, room: int) -> ValuePosition:
    at = cursor.offset
    kind = _value_type(cursor, f"the element type of {key!r}")
    if kind is ValueType.ARRAY:
        # The format allows nested arrays; no file has them, and ggml refuses them, too.
        raise cursor.error(at, f"numbers, booleans or strings as elements of {key!r}", "an array of arrays")
    at = cursor.offset
    count = cursor.uint64(f"the length of {key!r}")
    width = 8 if kind is ValueType.STRING else SCALARS[kind].size  # a string takes at least its length field
    limit = min(room, cursor.remaining // width)
    if count > limit:
        expected = f"at most {limit} elements in {key!r}, with {cursor.remaining} bytes that remain"
        raise cursor.error(at, expected, f"a count of {unsigned(count)}")
    start = cursor.offset
    if kind is ValueType.STRING:
        skip_strings(cursor, count, repr(key))
    else:
        cursor.skip(count * width, f"the elements of {key!r}")
    return ValuePosition(kind, start, cursor.offset, count)


def _value_type(cursor: Cursor, what: str) -> ValueType:
    at = cursor.offset
    number = cursor.uint32(what)
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.error(at, f"{what} to be from 0 to {max(ValueType)}", str(number)) from None
