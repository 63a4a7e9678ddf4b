"""The files of a model, each with its header read and checked; a split model has several, `NAME-00001-of-00003.gguf`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from backbay.errors import ModelFileError

from .config import Config
from .content import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    VERSIONS,
    Content,
    Cursor,
    ValueType,
    open_content,
)
from .metadata import Entry, Metadata, check_pair_count, read_entries
from .tensors import TensorInfo, check_tensor_count, place, read_table

_NAME = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A file: a whole model, or one part of a split model."""

    path: Path
    version: int
    alignment: int
    metadata: Config
    tensors: list[TensorInfo]
    content: Content


def read_part(path: Path, role: str = "a readable file") -> Part:
    """Open a file and check its header. If the file cannot be read, the error says that `role` was expected."""
    content = open_content(path, role)
    cursor = Cursor(content)
    version = _read_version(cursor)
    at = cursor.offset
    tensor_count = cursor.uint64("the number of tensors")
    pair_count = cursor.uint64("the number of keys")
    check_tensor_count(cursor, at, tensor_count)
    check_pair_count(cursor, at + 8, pair_count)
    entries = read_entries(cursor, pair_count)
    alignment = _alignment(cursor, entries.get("general.alignment"))
    tensors = place(cursor, read_table(cursor, tensor_count), alignment)
    offsets = {key: entry.offset for key, entry in entries.items()}
    config = Config(Metadata(path, cursor.header, entries), path=path, offsets=offsets)
    _ = config.architecture  # checks its type: every lookup needs it
    return Part(path, version, alignment, config, tensors, content)


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


def _alignment(cursor: Cursor, entry: Entry | None) -> int:
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


def read_parts(path: Path) -> list[Part]:
    """All parts of the model that the file at `path` belongs to, in order, checked against each other."""
    paths = part_paths(path)
    parts: list[Part] = []
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


def all_tensors(parts: Iterable[Part]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for part in parts:
        for info in part.tensors:
            if info.name in tensors:
                found = f"it also in {tensors[info.name].path.name}"
                raise ModelFileError(part.path, info.offset, f"tensor {info.name!r} in one part only", found)
            tensors[info.name] = info
    return tensors


def _check_place(part: Part, index: int, count: int) -> None:
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


def _contradiction(part: Part, key: str, expected: str) -> ModelFileError:
    config = part.metadata
    found = f"{config[key]}" if key in config else f"no {key}"
    return ModelFileError(part.path, config.offset(key), expected, found)
