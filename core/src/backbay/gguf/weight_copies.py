"""Weights that are not views of a file: copies in memory of their own, and the matrices of experts, stacked."""

from __future__ import annotations

import re
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import final

import numpy as np

from backbay.errors import ModelFileError

from .content import Content
from .header import Bytes, Derived, TensorInfo

ALIGNMENT = 64  # bytes, for libraries that compute with the copies in place

_NAME = re.compile(r"(blk\.[0-9]+\.ffn_(?:gate|up|down))\.([0-9]+)\.weight")


@final
class WeightMemory:
    """Memory for all weights of a model. Each weight is read when it is first asked for."""

    def __init__(self, tensors: Iterable[TensorInfo]) -> None:
        self._places: dict[str, int] = {}
        end = 0
        for info in tensors:
            self._places[info.name] = end
            end += -(-info.nbytes // ALIGNMENT) * ALIGNMENT
        memory = np.empty(end + ALIGNMENT, np.uint8)  # the system gives no page before it is written
        first = -memory.ctypes.data % ALIGNMENT
        self._memory: Bytes = memory[first : first + end]
        self._read: dict[str, Bytes] = {}
        self._lock = threading.Lock()

    def data(self, info: TensorInfo, derived: Derived | None, files: Mapping[Path, Content]) -> Bytes:
        """The copy of a weight, as it lies in the files, or as it is derived of what lies there."""

        def read(part: TensorInfo, target: Bytes) -> Bytes:
            files[part.path].read(part.offset, target.data)
            files[part.path].check()
            return target

        with self._lock:
            if info.name not in self._read:
                at = self._places[info.name]
                copy = self._memory[at : at + info.nbytes]
                if derived is None:
                    read(info, copy)
                else:
                    join_bytes(derived.chunks(lambda part: read(part, np.empty(part.nbytes, np.uint8))), copy)
                copy.flags.writeable = False
                self._read[info.name] = copy
            return self._read[info.name]


def join_bytes(chunks: Iterable[Bytes], target: Bytes) -> None:
    done = 0
    for chunk in chunks:
        target[done : done + chunk.size] = chunk
        done += chunk.size


def stack_experts(
    model: Path,
    tensors: Mapping[str, TensorInfo],
) -> tuple[dict[str, TensorInfo], dict[str, Derived]]:
    """All tensors, with stacks in place of the experts' matrices, and how each stack is made.

    Matrices stay single if they differ in type or shape, or if one is missing.
    """
    numbered: dict[str, dict[int, TensorInfo]] = defaultdict(dict)
    for name, info in tensors.items():
        if match := _NAME.fullmatch(name):
            numbered[f"{match[1]}_exps.weight"][int(match[2])] = info
    stacks = {
        name: [each for _, each in sorted(found.items())]
        for name, found in numbered.items()
        if name not in tensors and _are_alike(found)
    }
    inside = {each.name for parts in stacks.values() for each in parts}
    whole = {name: info for name, info in tensors.items() if name not in inside}
    derived: dict[str, Derived] = {}
    for name, parts in stacks.items():
        first, count = parts[0], len(parts)
        shape = (*first.shape, *[1] * (2 - len(first.shape)), count)
        whole[name] = replace(first, name=name, shape=shape, nbytes=count * first.nbytes)
        derived[name] = Derived(parts, partial(_one_by_one, parts), partial(_write_stack, model, name))
    return whole, derived


def _one_by_one(parts: Sequence[TensorInfo], data: Callable[[TensorInfo], Bytes]) -> Iterator[Bytes]:
    return map(data, parts)


def _write_stack(model: Path, name: str, parts: Iterable[Bytes]) -> Bytes:
    """Map the matrices from a nameless temporary file: the system can drop that memory and read it again."""
    try:
        with tempfile.TemporaryFile(prefix="backbay-experts-") as file:
            for part in parts:
                file.write(part.data)
            file.flush()
            return np.frombuffer(mmap(file.fileno(), 0, access=ACCESS_READ), np.uint8)
    except OSError as error:
        folder = tempfile.gettempdir()
        expected = f"room in {folder} to stack the experts of {name!r}, which the file holds singly"
        found = f"{error.strerror or error}; set TMPDIR to another folder, or convert the model again"
        raise ModelFileError(model, None, expected, found) from error


def _are_alike(found: Mapping[int, TensorInfo]) -> bool:
    kinds = {(info.dtype, info.shape, info.nbytes) for info in found.values()}
    return sorted(found) == list(range(len(found))) and len(kinds) == 1 and 0 not in kinds.pop()[1]
