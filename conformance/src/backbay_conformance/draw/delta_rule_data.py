"""Data with which the states of a delta rule do not grow without limit."""

from __future__ import annotations

import numpy as np

from ..numbers.encoding import Array
from .data import ComputedNumbers, Fill, FillContext
from .operand import Operand


def unit_vectors(making: FillContext, operand: Operand) -> Array:
    """Vectors of length 1; exact ones have one element that is not 0."""
    size = operand.shape[0]
    rows = int(np.prod(operand.shape[1:], dtype=np.int64))
    if making.exact:
        vectors = np.zeros((rows, size))
        if size:
            vectors[np.arange(rows), making.rng.integers(0, size, rows)] = making.rng.choice([-1, 1], rows)
        return vectors
    vectors = making.rng.standard_normal((rows, size))
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9))


def decays(making: FillContext, operand: Operand) -> Array:
    """From almost none to those that leave nothing; exact ones are 0."""
    size = int(np.prod(operand.shape, dtype=np.int64))
    if making.exact:
        return np.zeros(size)
    return -np.exp(making.rng.uniform(-4, making.rng.choice([1.0, 5.0]), size))


def shares(making: FillContext, operand: Operand) -> Array:
    """From 0 to 1."""
    size = int(np.prod(operand.shape, dtype=np.int64))
    return making.rng.integers(0, 2, size) if making.exact else making.rng.random(size)


FILLS: dict[str, Fill] = {
    "k": ComputedNumbers(unit_vectors),
    "decay": ComputedNumbers(decays),
    "share": ComputedNumbers(shares),
    "removed": ComputedNumbers(unit_vectors),
}
"""By the name of the operand."""
