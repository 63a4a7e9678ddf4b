"""Files of safetensors with facts and checksums: whole and unchanged, or refused."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from backbay.internals import open_regular, replacing

from ..errors import DamagedSnapshotError

FORMAT: Final = "backbay-snapshot-1"
KINDS: Final[Mapping[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I32": np.dtype("<i4"),
}
LARGEST_HEADER: Final = 1 << 26
MOST_TENSORS: Final = 1 << 16
MOST_DIMENSIONS: Final = 8


def pack_tensors(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> bytearray:
    """The bytes of a file. Each tensor has a checksum, and so have the facts, with the tensors' names and shapes."""
    parts = {
        name: np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for name, array in arrays.items()
    }
    table, at = dict[str, Any](), 0
    for name, array in arrays.items():
        kind = next(kind for kind, dtype in KINDS.items() if dtype == array.dtype)
        end = at + array.nbytes
        table[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, end]}
        at = end
    told, listed = json.dumps(facts), json.dumps({name: _sum(part) for name, part in parts.items()})
    whole = _whole_sum(table, told, listed)
    metadata = {"format": FORMAT, "facts": told, "checksums": listed, "checksum": whole}
    header = json.dumps({"__metadata__": metadata, **table}).encode()
    header += b" " * (-len(header) % 8)
    return bytearray(b"").join([struct.pack("<Q", len(header)), header, *parts.values()])


def unpack_tensors(
    data: bytes | bytearray | memoryview, where: object
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The tensors and the facts of a file; DamagedSnapshotError unless all of it is as it was written."""
    try:
        return _unpacked(memoryview(data).toreadonly())
    except _DamageError as damage:
        raise _damaged(where, damage) from None


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file. OSError, or DamagedSnapshotError, before more than its header is read, unless that fits its size."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        begin: bytes = file.read(8)
        begin += file.read(min(struct.unpack("<Q", begin)[0], LARGEST_HEADER) if len(begin) == 8 else 0)
        try:
            table, _, _, _ = _checked(memoryview(begin))
            _require_whole(max(map(_end_of, table.values()), default=0), size - len(begin))
        except _DamageError as damage:
            raise _damaged(path, damage) from None
        file.seek(0)
        data: bytes = file.read(size)
    return data


def write_file(path: Path, data: bytes | bytearray) -> None:
    """Write a file, whole or not at all: what was there stays until the new one is complete."""
    with replacing(path) as (file,):
        file.write(data)


def _damaged(where: object, damage: object) -> DamagedSnapshotError:
    return DamagedSnapshotError(f"{where}: the snapshot is damaged, or is none: {damage}")


class _DamageError(Exception):
    """Why bytes are no whole snapshot."""


def _checked(data: memoryview) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], memoryview]:
    """The tensors' table, the facts, the tensors' checksums, and what follows the header, which is as it was written."""
    table, metadata, body = _header(data)
    if metadata.get("format") != FORMAT:
        raise _DamageError(f"it should be of the format {FORMAT}, it is of {metadata.get('format')!r}")
    told, listed = metadata.get("facts"), metadata.get("checksums")
    if not isinstance(told, str) or not isinstance(listed, str):
        raise _DamageError("it has no facts or no checksums")
    if _whole_sum(table, told, listed) != metadata.get("checksum"):
        raise _DamageError("its facts are not those that were written")
    return table, _object(told), _object(listed), body


def _unpacked(data: memoryview) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    table, facts, sums, body = _checked(data)
    arrays: dict[str, NDArray[Any]] = {}
    at = 0
    for name, entry in table.items():
        arrays[name], at = _tensor(name, entry, body, at, sums.get(name))
    _require_whole(at, len(body))
    return arrays, facts


def _require_whole(nbytes: int, held: int) -> None:
    if nbytes != held:
        raise _DamageError(f"its tensors have {nbytes} bytes, the file holds {held}")


def _end_of(entry: object) -> int:
    match entry:
        case {"data_offsets": [int(), int(end)]}:
            return end
    raise _DamageError("a tensor is described wrongly")


def _header(data: memoryview) -> tuple[dict[str, Any], dict[str, Any], memoryview]:
    size = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else LARGEST_HEADER + 1
    if size > min(LARGEST_HEADER, len(data) - 8):
        raise _DamageError(f"it has {len(data)} bytes, which are not a whole header")
    header = _object(bytes(data[8 : 8 + size]))
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or len(header) > MOST_TENSORS:
        raise _DamageError("it has no metadata, or too many tensors")
    return header, metadata, data[8 + size :]


def _tensor(
    name: str, entry: object, body: memoryview, at: int, checksum: object
) -> tuple[NDArray[Any], int]:
    """A tensor, which begins where the one before it ends, and its end."""
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
            kind in KINDS
            and begin == at
            and len(shape) <= MOST_DIMENSIONS
            and all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
        ):
            if end - begin != prod(shape) * KINDS[kind].itemsize or end > len(body):
                raise _DamageError(f"the tensor {name!r} is cut")
        case _:
            raise _DamageError(f"the tensor {name!r} is described wrongly")
    part = body[begin:end]
    if _sum(part) != checksum:
        raise _DamageError(f"the bytes of the tensor {name!r} are not those that were written")
    return np.frombuffer(part, KINDS[kind]).reshape(shape), end


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _DamageError(f"it holds no JSON where it should: {error}") from None
    if not isinstance(found, dict):
        raise _DamageError("it holds another kind of JSON than it should")
    return found


def _sum(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _whole_sum(table: Mapping[str, Any], facts: str, sums: str) -> str:
    return _sum("\n".join((json.dumps(table), facts, sums)).encode())
