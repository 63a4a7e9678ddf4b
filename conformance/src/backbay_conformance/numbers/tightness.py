"""The share of compared elements that a comparison really judges: those whose bound is finite and tight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from .rounding import Array

TIGHT = 0.1
"""A bound is tight if it is below this share of the value's scale."""
ENOUGH = 0.7
"""The least share of tight elements that a case or relation should have."""

Shares = dict[str, list[int]]
"""By check: the number of tight elements, and of all elements."""

_open: list[Shares] = []


@contextmanager
def measured() -> Iterator[Shares]:
    """The shares of all comparisons in this block."""
    shares: Shares = {}
    _open.append(shares)
    try:
        yield shares
    finally:
        _open.remove(shares)


def note(check: str, value: Array, bound: Array | float, free: Array | None = None) -> None:
    """Count the elements of a comparison.

    The scale of a value is its magnitude, or the mean magnitude of all values if that is larger: an element near zero
    is the difference of larger terms. Infinities and NaN have a bound of 0; elements that the documentation leaves
    open are never tight.
    """
    if not _open or not value.size:
        return
    with np.errstate(all="ignore"):
        magnitude = np.abs(np.where(np.isfinite(value), value, 0))
        tight = np.asarray(bound) <= TIGHT * np.maximum(magnitude, magnitude.mean())
    if free is not None:
        tight = tight & ~free
    found = int(np.broadcast_to(tight, value.shape).sum())
    for shares in _open:
        own = shares.setdefault(check, [0, 0])
        own[0], own[1] = own[0] + found, own[1] + value.size
