"""The files of a model, each with its header read and checked, and the table of its tensors; a split model has several files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from backbay.errors import ModelFileError
from backbay.types.dtype import DType

from .config import Config
from .content import MAX_SIGNED, Content, Cursor, ValueType, open_content, unsigned
from .metadata import Metadata, ValuePosition, read_entries

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # in little-endian files they are the same
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_NAME_BYTES = 127  # ggml's limit is 63, but its forks for diffusion write up to 127
MAX_RANK = 4
MIN_PAIR_BYTES = 8 + 1 + 4 + 1  # a key of one letter, a value of one byte
MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8  # a name of one letter, no dimensions

Bytes: TypeAlias = npt.NDArray[np.uint8]
_DTYPES = {int(dtype): dtype for dtype in DType}


_NAME = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file. Dimension 0 is the innermost; the rank is as declared, and may be 0."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int  # in its own file
    nbytes: int
    path: Path  # the file; in a split model, the part
    declared_at: int | None = None  # where its number of dimensions stands, followed by shape and type


@final
@dataclass(frozen=True, slots=True)
class Derived:
    """How the data of a tensor are made of data in files: of the `parts`, whose bytes a function gives to `chunks`.

    The chunks follow one another. `stored` makes an array of them; without it, they are joined in memory.
    """

    parts: Sequence[TensorInfo]
    chunks: Callable[[Callable[[TensorInfo], Bytes]], Iterator[Bytes]]
    stored: Callable[[Iterator[Bytes]], Bytes] | None = None


def _check_count(cursor: Cursor, at: int, count: int, what: str, most: int, least_bytes: int) -> None:
    limit = min(most, cursor.remaining // least_bytes)
    if count > limit:
        expected = f"at most {limit} {what} in the {cursor.remaining} bytes that remain"
        raise cursor.error(at, expected, f"a count of {unsigned(count)}")


def read_table(cursor: Cursor, count: int) -> list[TensorInfo]:
    """The rows of the table; their offsets count from the start of the data, which is not known yet."""
    table: dict[str, TensorInfo] = {}
    for index in range(count):
        at = cursor.offset
        row = _read_row(cursor, index)
        if row.name in table:
            raise cursor.error(at, f"no second tensor {row.name!r}", f"it again, as tensor {index}")
        table[row.name] = row
    return list(table.values())


def locate_data(cursor: Cursor, table: Sequence[TensorInfo], alignment: int) -> list[TensorInfo]:
    """Locate the data: behind the header, aligned, within the file, without overlaps."""
    start = -(-cursor.offset // alignment) * alignment
    for row in table:
        if row.offset % alignment:
            expected = f"the offset of tensor {row.name!r} to be a multiple of {alignment}"
            raise cursor.error(_offset_at(row), expected, unsigned(row.offset))
        if start + row.offset + row.nbytes > cursor.size:
            expected = f"the {row.nbytes} bytes of tensor {row.name!r} within the file's {cursor.size}"
            found = f"an offset of {unsigned(row.offset)} from the data's start at byte {start}"
            raise cursor.error(_offset_at(row), expected, found)
    for before, after in pairwise(sorted((row for row in table if row.nbytes), key=lambda row: row.offset)):
        end = before.offset + before.nbytes
        if after.offset < end:
            expected = f"tensor {after.name!r} at offset {end} or later, where {before.name!r} ends"
            raise cursor.error(_offset_at(after), expected, f"an offset of {after.offset}")
    return [replace(row, offset=start + row.offset) for row in table]


def _offset_at(row: TensorInfo) -> int:
    """The place of a tensor's offset in the file: behind its number of dimensions, its shape and its type."""
    assert row.declared_at is not None  # as `read_table` notes it
    return row.declared_at + 8 + 8 * len(row.shape)


def _read_row(cursor: Cursor, index: int) -> TensorInfo:
    name = cursor.name(MAX_NAME_BYTES, f"the name of tensor {index}")
    at = cursor.offset
    shape = _read_shape(cursor, name)
    type_at = cursor.offset
    number = cursor.uint32(f"the type of tensor {name!r}")
    dtype = _DTYPES.get(number)
    if dtype is None:  # unknown, or removed from ggml
        raise cursor.error(type_at, f"a known type of tensor {name!r}", f"type {number}")
    nbytes = _size(cursor, at, name, shape, dtype)
    offset = cursor.uint64(f"the offset of tensor {name!r}")
    return TensorInfo(name, dtype, shape, offset, nbytes, cursor.path, at)


def _read_shape(cursor: Cursor, name: str) -> tuple[int, ...]:
    at = cursor.offset
    rank = cursor.uint32(f"the number of dimensions of tensor {name!r}")
    if rank > MAX_RANK:
        raise cursor.error(at, f"tensor {name!r} to have at most {MAX_RANK} dimensions", str(rank))
    at = cursor.offset
    shape = tuple(cursor.uint64(f"dimension {index} of tensor {name!r}") for index in range(rank))
    for index, dim in enumerate(shape):
        if dim > MAX_SIGNED:
            expected = f"dimension {index} of tensor {name!r} to be from 0 to {MAX_SIGNED}"
            raise cursor.error(at + 8 * index, expected, unsigned(dim))
    return shape


def _size(cursor: Cursor, at: int, name: str, shape: tuple[int, ...], dtype: DType) -> int:
    row = shape[0] if shape else 1
    if row % dtype.block_size:
        expected = f"dimension 0 of tensor {name!r} to be a multiple of {dtype.block_size}, for {dtype.name}"
        raise cursor.error(at, expected, str(row))
    # Some files hold empty tensors as marks, and ggml takes them; strides are made of their other dimensions.
    blocks = prod(max(dim, 1) for dim in shape)
    if blocks * dtype.type_size > MAX_SIGNED:
        expected = f"a size of tensor {name!r} that 63 bits can hold"
        raise cursor.error(at, expected, f"{list(shape)} of {dtype.name}")
    return prod(shape) // dtype.block_size * dtype.type_size


@final
@dataclass(frozen=True, slots=True)
class FilePart:
    """A file: a whole model, or one part of a split model."""

    path: Path
    version: int
    alignment: int
    metadata: Config
    tensors: list[TensorInfo]
    content: Content


def read_part(path: Path, role: str = "a readable file") -> FilePart:
    """Open a file and check its header. If the file cannot be read, the error says that `role` was expected."""
    content = open_content(path, role)
    cursor = Cursor(content)
    version = _read_version(cursor)
    at = cursor.offset
    tensor_count = cursor.uint64("the number of tensors")
    pair_count = cursor.uint64("the number of keys")
    _check_count(cursor, at, tensor_count, "tensors", MAX_TENSORS, MIN_TENSOR_BYTES)
    _check_count(cursor, at + 8, pair_count, "keys", MAX_KEYS, MIN_PAIR_BYTES)
    entries = read_entries(cursor, pair_count)
    alignment = _alignment(cursor, entries.get("general.alignment"))
    tensors = locate_data(cursor, read_table(cursor, tensor_count), alignment)
    offsets = {key: entry.offset for key, entry in entries.items()}
    config = Config(Metadata(path, cursor.header, entries), path=path, offsets=offsets)
    _ = config.architecture  # checks its type: every lookup needs it
    return FilePart(path, version, alignment, config, tensors, content)


def _read_version(cursor: Cursor) -> int:
    magic = cursor.take(4, "the magic GGUF")
    if magic != MAGIC:
        raise cursor.error(0, "the magic GGUF", repr(magic))
    version = cursor.uint32("the version")
    if version and not version & 0xFFFF:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise cursor.error(4, "a little-endian file", f"version {swapped} in big-endian order")
    if version not in VERSIONS:
        raise cursor.error(4, "version 2 or 3", f"version {version}")
    return version


def _alignment(cursor: Cursor, entry: ValuePosition | None) -> int:
    if entry is None:
        return DEFAULT_ALIGNMENT
    if entry.type is not ValueType.UINT32 or entry.count is not None:
        found = f"{'an array of ' if entry.count is not None else ''}{entry.type.name.lower()}"
        raise cursor.error(entry.offset, "general.alignment to be uint32", found)
    alignment = int.from_bytes(cursor.buffer[entry.offset : entry.end], "little")
    # The specification requires a multiple of 8; with less, ggml would read unaligned numbers.
    if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        expected = f"general.alignment to be a power of two from 8 to {MAX_ALIGNMENT}"
        raise cursor.error(entry.offset, expected, str(alignment))
    return alignment


def read_parts(path: Path) -> list[FilePart]:
    """All parts of the model that the file at `path` belongs to, in order, checked against each other."""
    paths = part_paths(path)
    parts: list[FilePart] = []
    for index, each in enumerate(paths):
        role = f"part {index + 1} of a model of {len(paths)}" if len(paths) > 1 else "a readable file"
        parts.append(read_part(each, role))
        _check_place(parts[-1], index, len(paths))
    total = sum(len(part.tensors) for part in parts)
    for part in parts if len(parts) > 1 else ():
        if part.metadata.int("split.tensors.count", -1) != total:
            expected = f"a split.tensors.count of {total}, as the {len(parts)} parts hold together"
            raise _contradiction(part, "split.tensors.count", expected)
    return parts


def part_paths(path: Path) -> list[Path]:
    match = _NAME.fullmatch(path.name)
    if match is None:
        return [path]
    stem, number, count = match[1], int(match[2]), int(match[3])
    if not 1 <= number <= count:
        raise ModelFileError(path, None, f"a part from 1 to {count}, as its name says", f"part {number}")
    return [path.with_name(f"{stem}-{index:05}-of-{count:05}.gguf") for index in range(1, count + 1)]


def all_tensors(parts: Iterable[FilePart]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for part in parts:
        for info in part.tensors:
            if info.name in tensors:
                found = f"it also in {tensors[info.name].path.name}"
                raise ModelFileError(part.path, info.offset, f"tensor {info.name!r} in one part only", found)
            tensors[info.name] = info
    return tensors


def _check_place(part: FilePart, index: int, count: int) -> None:
    """Check the part's number and the count in its metadata against those in its name."""
    config = part.metadata
    said = config.int("split.count", 0)
    if said not in ((0, 1) if count == 1 else (count,)):  # merging tools leave a 0 behind
        expected = f"a split.count of {count}, as the file's name says"
        if count == 1:
            expected = f"a name like NAME-00001-of-{said:05}.gguf for a part of a split model"
        raise _contradiction(part, "split.count", expected)
    if config.int("split.no", 0 if count == 1 else -1) != index:
        raise _contradiction(part, "split.no", f"a split.no of {index}, for part {index + 1} of {count}")


def _contradiction(part: FilePart, key: str, expected: str) -> ModelFileError:
    config = part.metadata
    found = f"{config[key]}" if key in config else f"no {key}"
    return ModelFileError(part.path, config.offset(key), expected, found)
