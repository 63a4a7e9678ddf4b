"""One model file: mapped, with its header read and checked."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from backbay.errors import ModelFileError

from .config import Config
from .cursor import Cursor
from .layout import DEFAULT_ALIGNMENT, MAGIC, MAX_ALIGNMENT, VERSIONS, ValueType
from .metadata import Entry, Metadata, check_pair_count, read_entries
from .tensors import TensorInfo, check_tensor_count, place, read_table


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A file: a whole model, or one part of a split model."""

    path: Path
    version: int
    alignment: int
    metadata: Config
    tensors: list[TensorInfo]
    content: npt.NDArray[np.uint8]  # the whole file, read-only


def read_part(path: Path, role: str = "a readable file") -> Part:
    """Map a file and check its header. If the file cannot be read, the error says that `role` was expected."""
    header, whole = _map_twice(path, role)
    cursor = Cursor(path, header)
    version = _read_version(cursor)
    tensor_count, pair_count = _read_counts(cursor)
    entries = read_entries(cursor, pair_count)
    alignment = _alignment(cursor, entries.get("general.alignment"))
    config = _config(path, header, entries)
    tensors = place(cursor, read_table(cursor, tensor_count), alignment)
    return Part(path, version, alignment, config, tensors, np.frombuffer(whole, np.uint8))


def _map_twice(path: Path, role: str) -> tuple[mmap, mmap]:
    """Map a file twice, for the header and for the weights: metadata can outlive the model file without its weights.

    If a mapped file shrinks, access to it ends the process (SIGBUS). Nothing guards against this, as model files
    are replaced, not rewritten in place.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # checked before opening: opening a pipe would block
            raise ModelFileError(path, None, role, f"{stat.filemode(mode)}, not a regular file")
        with path.open("rb") as stream:
            number, size = stream.fileno(), os.fstat(stream.fileno()).st_size
            if not size:
                raise ModelFileError(path, 0, "the magic GGUF", "an empty file")
            return mmap(number, size, access=ACCESS_READ), mmap(number, size, access=ACCESS_READ)
    except ModelFileError:
        raise
    except (OSError, ValueError, OverflowError) as error:
        # ValueError: the path contains NUL, or the file shrank after fstat.
        raise ModelFileError(path, None, role, getattr(error, "strerror", None) or error) from error


def _config(path: Path, header: mmap, entries: Mapping[str, Entry]) -> Config:
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
