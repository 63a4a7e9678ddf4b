"""The memory that a kernel over arrays works in, and reused memory for its conversions: fresh pages cost more than the writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...data.encoding import NUMPY, Array, Bytes, decode
from ...graph.graph import Node
from ...memory.ledger import Entry, Ledger
from ...types.spec import DType

ALIGNMENT = 64  # bytes
CHUNK = 1 << 18  # elements that are decoded at a time


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
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        begin, end = self._taken, self._taken + aligned(nbytes)
        if end > self._memory.size:
            return np.empty(shape, dtype)
        self._taken = end
        return self._memory[begin : begin + nbytes].view(dtype).reshape(shape)


def converted_nbytes(node: Node, float_dtype: type[np.floating[Any]]) -> int:
    """The bytes of a kernel's operands, as far as they are converted for it."""
    assert node.op is not None
    if node.op.moves:
        return 0
    floats = [operand for operand in node.operands if not operand.dtype.is_integer]
    converted = [operand for operand in floats if NUMPY.get(operand.dtype) != np.dtype(float_dtype)]
    return sum(aligned(operand.size * np.dtype(float_dtype).itemsize) for operand in converted)


def convert(raw: Array, dtype: DType, into: Array) -> Array:
    """Fill `into` with the numbers of a stored array; rows are decoded some at a time."""
    if dtype in NUMPY and dtype is not DType.BF16:
        np.copyto(into, raw)
    elif into.size:
        rows, filled = raw.reshape(-1, raw.shape[-1]), into.reshape(-1, into.shape[-1])
        step = max(1, CHUNK // into.shape[-1])
        for low in range(0, len(rows), step):
            filled[low : low + step] = decode(rows[low : low + step], dtype)
    return into
