"""Reused memory for conversions: fresh pages cost more than the writes to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .encoding import Array

LARGEST = 1 << 26  # bytes; it does not pay to keep larger buffers


class Scratch:
    """Memory for the converted operands of one kernel at a time."""

    def __init__(self) -> None:
        self._buffers: list[Array] = []
        self._next = 0

    def reset(self) -> None:
        """Allow overwriting: the kernel that used the operands is done."""
        self._next = 0

    def convert(self, values: Array, dtype: type[np.floating[Any]]) -> Array:
        """Convert `values` to another dtype; the result is valid until `reset`."""
        nbytes = values.size * np.dtype(dtype).itemsize
        if nbytes > LARGEST:
            return values.astype(dtype)
        if self._next == len(self._buffers):
            self._buffers.append(np.empty(0, np.uint8))
        if self._buffers[self._next].size < nbytes:
            self._buffers[self._next] = np.empty(nbytes, np.uint8)
        converted = self._buffers[self._next][:nbytes].view(dtype).reshape(values.shape)
        self._next += 1
        np.copyto(converted, values)
        return converted
