"""Reused memory for conversions: fresh pages cost more than the writes to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...data.encoding import Array, Bytes
from ...memory.ledger import Entry, Ledger

ALIGNMENT = 64  # bytes


def aligned(nbytes: int) -> int:
    """The bytes that an array takes of the scratch memory."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Scratch:
    """Memory for the converted operands of one kernel at a time, as large as the largest plan needs."""

    def __init__(self, ledger: Ledger, entry: Entry) -> None:
        self._ledger, self._entry = ledger, entry
        self._memory: Bytes = np.empty(0, np.uint8)
        self._taken = 0
        self._booked = 0
        self._wanted: dict[int, int] = {}  # bytes by plan

    def join(self, owner: object, nbytes: int) -> None:
        """Make room for the operands of one more plan."""
        if nbytes > self._booked:
            self._ledger.take(self._entry, nbytes - self._booked, lambda: self._replace(nbytes))
            self._booked = nbytes
        self._wanted[id(owner)] = nbytes

    def leave(self, owner: object) -> None:
        """One plan less; the last one frees the memory."""
        self._wanted.pop(id(owner), None)
        if not self._wanted:
            self._ledger.give_back(self._entry, self._booked)
            self._memory, self._booked = np.empty(0, np.uint8), 0

    def _replace(self, nbytes: int) -> None:
        if self._ledger.holds:
            self._memory = np.empty(0, np.uint8)  # first free the old memory
            self._memory = np.empty(nbytes, np.uint8)

    def reset(self) -> None:
        """Allow overwriting: the kernel that used the operands is done."""
        self._taken = 0

    def take(self, shape: tuple[int, ...], dtype: type[np.floating[Any]]) -> Array:
        """An array of undefined content, valid until `reset`; of fresh memory if no plan asked for so much."""
        made: Array = np.empty(0, dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * made.itemsize
        end = self._taken + aligned(nbytes)
        if end > self._memory.size:
            return np.empty(shape, dtype)
        made = self._memory[self._taken : self._taken + nbytes].view(dtype).reshape(shape)
        self._taken = end
        return made
