"""The keys and values of a header: checked when a file is opened, decoded on access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from backbay.errors import ModelFileError

from .cursor import Cursor
from .layout import (
    MAX_ELEMENTS,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_STRING_BYTES,
    MIN_PAIR_BYTES,
    SCALARS,
    ValueType,
    unsigned,
)
from .strings import Strings, decode, skip_strings

Value: TypeAlias = bool | int | float | str | Strings | npt.NDArray[Any]


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """The position of a value in the file. For an array, `type` is the element type; otherwise `count` is None."""

    type: ValueType
    offset: int  # of the value; of an array's first element
    end: int
    count: int | None


@final
class Metadata(Mapping[str, Value]):
    """The keys and values of one file, in its order. Numeric arrays are views of its header, strings decode on access."""

    def __init__(self, path: Path, buffer: bytes, entries: Mapping[str, Entry]) -> None:
        self._path, self._buffer, self._entries = path, buffer, entries
        self._strings: dict[str, Strings] = {}  # cached, so that each array's offsets are scanned once

    def __getitem__(self, key: str) -> Value:
        entry = self._entries[key]
        if entry.count is None:
            return self._scalar(entry)
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

    def _scalar(self, entry: Entry) -> Value:
        if entry.type is ValueType.STRING:
            return decode(self._path, self._buffer, entry.offset, entry.end)
        value: int | float = SCALARS[entry.type].unpack_from(self._buffer, entry.offset)[0]
        return bool(value) if entry.type is ValueType.BOOL else value

    def _numbers(self, key: str, entry: Entry, count: int) -> npt.NDArray[Any]:
        dtype = np.dtype(SCALARS[entry.type].format)
        numbers: npt.NDArray[Any] = np.frombuffer(self._buffer, dtype, count, entry.offset)
        if entry.type is not ValueType.BOOL:
            return numbers
        if numbers.max(initial=0) > 1:
            index = int(np.argmax(numbers > 1))
            expected = f"0 or 1 as element {index} of {key!r}"
            raise ModelFileError(self._path, entry.offset + index, expected, int(numbers[index]))
        return numbers.view(np.bool_)


def read_entries(cursor: Cursor, count: int) -> dict[str, Entry]:
    """Read and check all keys and values. No value is decoded; only the entries take memory."""
    entries: dict[str, Entry] = {}
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


def check_pair_count(cursor: Cursor, at: int, count: int) -> None:
    limit = min(MAX_KEYS, cursor.remaining // MIN_PAIR_BYTES)
    if count > limit:
        expected = f"at most {limit} keys in the {cursor.remaining} bytes that remain"
        raise cursor.error(at, expected, f"a count of {unsigned(count)}")


def _read_value(cursor: Cursor, key: str, room: int) -> Entry:
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
    return Entry(kind, start, cursor.offset, None)


def _read_array(cursor: Cursor, key: str, room: int) -> Entry:
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
    return Entry(kind, start, cursor.offset, count)


def _value_type(cursor: Cursor, what: str) -> ValueType:
    at = cursor.offset
    number = cursor.uint32(what)
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.error(at, f"{what} to be from 0 to {max(ValueType)}", str(number)) from None
