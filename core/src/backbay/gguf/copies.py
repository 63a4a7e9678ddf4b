"""Weights in memory of their own, for a model file that may change while it is in use."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import final

import numpy as np

from .content import Content
from .tensors import Bytes, Derived, TensorInfo

ALIGNMENT = 64  # bytes, for libraries that compute with the copies in place


@final
class Copies:
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
                    join(derived.chunks(lambda part: read(part, np.empty(part.nbytes, np.uint8))), copy)
                copy.flags.writeable = False
                self._read[info.name] = copy
            return self._read[info.name]


def join(chunks: Iterable[Bytes], target: Bytes) -> None:
    """Fill an array with chunks that follow one another."""
    done = 0
    for chunk in chunks:
        target[done : done + chunk.size] = chunk
        done += chunk.size
