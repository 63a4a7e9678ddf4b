"""Safetensors files: a header of JSON, then the bytes of the tensors. Everything is checked before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from backbay import DType, ModelFileError
from backbay.gguf import Content, TensorInfo, nearest, open_content

from .json_files import parse_json, read_object

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
LARGEST_HEADER = 1 << 27
MOST_TENSORS, MOST_FILES, LARGEST_RANK = 1 << 18, 1 << 12, 8
LARGEST = (1 << 63) - 1
DTYPES = {kind.name: kind for kind in (DType.F32, DType.F16, DType.BF16, DType.F64)}
DTYPES |= {kind.name: kind for kind in (DType.I64, DType.I32, DType.I16, DType.I8)}
DTYPES |= {"U8": DType.I8, "BOOL": DType.I8}  # bytes that only a transformation can understand
OPAQUE = {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "U32": 4, "U64": 8}
"""Bytes of an element of dtypes that no model here takes; a tensor that nobody needs may have one."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file; `info` has GGUF's order of dimensions. `kind` is the file's name of the dtype."""

    info: TensorInfo
    kind: str


@dataclass(frozen=True)
class Checkpoint:
    """The safetensors files of a folder, and their tensors by name."""

    contents: list[Content]
    tensors: dict[str, StoredTensor]


def read_checkpoint(folder: Path) -> Checkpoint:
    """The tensors of a folder: those that its index lists, or of its one file."""
    contents: list[Content] = []
    tensors: dict[str, StoredTensor] = {}
    for path in _files(folder):
        content = open_content(path, "a readable safetensors file")
        contents.append(content)
        for name, stored in _read_header(content):
            if name in tensors:
                found = f"it also in {tensors[name].info.path.name}"
                raise ModelFileError(path, stored.info.offset, f"tensor {name!r} in one file only", found)
            tensors[name] = stored
    return Checkpoint(contents, tensors)


def read_file(path: Path) -> Checkpoint:
    """The tensors of one file."""
    content = open_content(path, "a readable safetensors file")
    return Checkpoint([content], dict(_read_header(content)))


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.exists():
        return _indexed(index)
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(others) == 1:
        return [folder / others[0]]
    old = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    found = f"{', '.join(others[:4])} without an index" if others else "none"
    if old and not others:
        remedy = "PyTorch's pickles, which can run any code; save the model as safetensors"
        found = f"{', '.join(old[:4])}: {remedy}"
    raise ModelFileError(folder, None, f"{SINGLE}, or {INDEX}", found)


def _indexed(index: Path) -> list[Path]:
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ModelFileError(index, None, "an object weight_map, from tensors to files", "another value")
    names = sorted(set(places.values()))
    if len(names) > MOST_FILES:
        raise ModelFileError(index, None, f"at most {MOST_FILES} files", len(names))
    for name in names:
        if not name or name != Path(name).name or "\0" in name:  # another folder's file is not the model's
            raise ModelFileError(index, None, "names of files in its own folder", repr(name))
    return [index.parent / name for name in names]


def _read_header(content: Content) -> Iterator[tuple[str, StoredTensor]]:
    path, size = content.path, content.size
    if size < 8:
        raise ModelFileError(path, 0, "the 8 bytes of the header's length", f"{size} bytes in all")
    length = int.from_bytes(_read(content, 0, 8), "little")
    if length > min(size - 8, LARGEST_HEADER):
        expected = f"a header of at most {min(size - 8, LARGEST_HEADER)} bytes"
        raise ModelFileError(path, 0, expected, f"a length of {length}; is it a safetensors file?")
    header = parse_json(path, _read(content, 8, length), 8)
    if not isinstance(header, dict):
        raise ModelFileError(path, 8, "a JSON object as header", f"a JSON {type(header).__name__}")
    if len(header) > MOST_TENSORS:
        raise ModelFileError(path, 8, f"at most {MOST_TENSORS} tensors", len(header))
    header.pop("__metadata__", None)
    found = [_row(path, name, row, 8 + length, size) for name, row in header.items()]
    ordered = sorted((each for each in found if each.info.nbytes), key=lambda each: each.info.offset)
    for before, after in pairwise(ordered):
        end = before.info.offset + before.info.nbytes
        if after.info.offset < end:
            expected = f"tensor {after.info.name!r} at byte {end} or later, where {before.info.name!r} ends"
            raise ModelFileError(path, 8, expected, f"byte {after.info.offset}")
    return ((each.info.name, each) for each in found)


def _row(path: Path, name: str, row: Any, start: int, size: int) -> StoredTensor:
    """A tensor of the header, checked against the file."""
    where = f"of tensor {name[:100]!r}"
    if not isinstance(row, dict):
        raise ModelFileError(path, 8, f"an object as description {where}", f"a JSON {type(row).__name__}")
    kind, shape, offsets = row.get("dtype"), row.get("shape"), row.get("data_offsets")
    if not isinstance(kind, str) or (kind not in DTYPES and kind not in OPAQUE):
        known = (*DTYPES, *OPAQUE)
        raise ModelFileError(path, 8, f"a known dtype {where}", f"{kind!r}{nearest(str(kind)[:40], known)}")
    if not _are_counts(shape) or len(shape) > LARGEST_RANK:
        raise ModelFileError(path, 8, f"a shape {where} of at most {LARGEST_RANK} counts", str(shape)[:200])
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ModelFileError(path, 8, f"two data_offsets {where}", str(offsets)[:200])
    element = OPAQUE[kind] if kind in OPAQUE else DTYPES[kind].type_size
    first, last = offsets
    nbytes = prod(shape) * element
    if last - first != nbytes:
        raise ModelFileError(path, 8, f"{nbytes} bytes {where}, as {kind} of {shape}", f"{first} to {last}")
    if start + last > size:
        expected = f"the data {where} within the file's {size} bytes"
        raise ModelFileError(path, 8, expected, f"an end at {start + last}")
    dtype = DTYPES.get(kind, DType.I8)
    return StoredTensor(TensorInfo(name, dtype, tuple(reversed(shape)), start + first, nbytes, path), kind)


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= LARGEST for n in value
    )


def _read(content: Content, offset: int, count: int) -> bytes:
    data = np.empty(count, np.uint8)
    content.read(offset, data.data)
    return data.tobytes()
