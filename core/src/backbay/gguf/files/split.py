"""Models that are split over several files, `NAME-00001-of-00003.gguf`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from backbay.errors import ModelFileError

from ..header.tensors import TensorInfo
from .part import Part, read_part

_NAME = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


def read_parts(path: Path) -> list[Part]:
    """All parts of the model that the file at `path` belongs to, in order, checked against each other."""
    paths = part_paths(path)
    parts: list[Part] = []
    for index, each in enumerate(paths):
        role = f"part {index + 1} of a model of {len(paths)}" if len(paths) > 1 else "a readable file"
        parts.append(read_part(each, role))
        _check_place(parts[-1], index, len(paths))
    if len(parts) > 1:
        _check_totals(parts)
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


def _check_totals(parts: list[Part]) -> None:
    total = sum(len(part.tensors) for part in parts)
    for part in parts:
        if part.metadata.int("split.tensors.count", -1) != total:
            expected = f"a split.tensors.count of {total}, as the {len(parts)} parts hold together"
            raise _contradiction(part, "split.tensors.count", expected)


def _contradiction(part: Part, key: str, expected: str) -> ModelFileError:
    config = part.metadata
    found = f"{config[key]}" if key in config else f"no {key}"
    return ModelFileError(part.path, config.offset(key), expected, found)
