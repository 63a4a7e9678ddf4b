"""The table of tensors in one file, checked against the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from backbay.types.spec import DType

from .content import MAX_NAME_BYTES, MAX_RANK, MAX_SIGNED, MAX_TENSORS, MIN_TENSOR_BYTES, Cursor, unsigned

Bytes: TypeAlias = npt.NDArray[np.uint8]
_DTYPES = {int(dtype): dtype for dtype in DType}


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


def check_tensor_count(cursor: Cursor, at: int, count: int) -> None:
    limit = min(MAX_TENSORS, cursor.remaining // MIN_TENSOR_BYTES)
    if count > limit:
        expected = f"at most {limit} tensors in the {cursor.remaining} bytes that remain"
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


def place(cursor: Cursor, table: Sequence[TensorInfo], alignment: int) -> list[TensorInfo]:
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
