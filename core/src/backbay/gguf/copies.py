"""Weights in memory of their own, for a model file that may change while it is in use."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from .content import Content
from .tensors import TensorInfo

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
        self._memory: npt.NDArray[np.uint8] = memory[first : first + end]
        self._read: dict[str, npt.NDArray[np.uint8]] = {}
        self._lock = threading.Lock()

    def data(
        self, info: TensorInfo, parts: Sequence[TensorInfo], files: Mapping[Path, Content]
    ) -> npt.NDArray[np.uint8]:
        """The copy of a weight, which lies in the files as `parts`."""
        with self._lock:
            if info.name not in self._read:
                at = self._places[info.name]
                copy = self._memory[at : at + info.nbytes]
                done = 0
                for part in parts:
                    files[part.path].read(part.offset, copy[done : done + part.nbytes].data)
                    files[part.path].check()
                    done += part.nbytes
                copy.flags.writeable = False
                self._read[info.name] = copy
            return self._read[info.name]
