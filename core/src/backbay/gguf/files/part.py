"""One model file, with its header read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ..header.content import Content, open_content
from ..header.cursor import Cursor
from ..header.layout import DEFAULT_ALIGNMENT, MAGIC, MAX_ALIGNMENT, VERSIONS, ValueType
from ..header.metadata import Entry, Metadata, check_pair_count, read_entries
from ..header.tensors import TensorInfo, check_tensor_count, place, read_table
from ..values.config import Config


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
    tensor_count, pair_count = _read_counts(cursor)
    entries = read_entries(cursor, pair_count)
    alignment = _alignment(cursor, entries.get("general.alignment"))
    tensors = place(cursor, read_table(cursor, tensor_count), alignment)
    config = _config(path, cursor.header, entries)
    return Part(path, version, alignment, config, tensors, content)


def _config(path: Path, header: bytes, entries: Mapping[str, Entry]) -> Config:
    offsets = {key: entry.offset for key, entry in entries.items()}
    config = Config(Metadata(path, header, entries), path=path, offsets=offsets)
    _ = config.architecture  # checks its type: every lookup needs it
    return config


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


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    at = cursor.offset
    tensors = cursor.uint64("the number of tensors")
    pairs = cursor.uint64("the number of keys")
    check_tensor_count(cursor, at, tensors)
    check_pair_count(cursor, at + 8, pairs)
    return tensors, pairs


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
