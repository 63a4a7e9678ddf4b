"""Memory for conversions that is used again: fresh pages cost more than what is written to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .encoding import Array

LARGEST = 1 << 26  # bytes; beyond it, keeping them would cost more than asking for them anew


class Scratch:
    """The operands of one kernel at a time, converted."""

    def __init__(self) -> None:
        self._buffers: list[Array] = []
        self._next = 0

    def reset(self) -> None:
        """The kernel is done: what it was given may be overwritten."""
        self._next = 0

    def convert(self, values: Array, dtype: type[np.floating[Any]]) -> Array:
        """`values` in another dtype; the result holds until `reset`."""
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
