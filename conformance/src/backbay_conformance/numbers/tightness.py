"""The share of compared elements that a comparison really judges: those whose bound is finite and tight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from .rounding import Array

TIGHT = 0.1
"""A bound is tight if it is below this share of the value's scale."""
NOTHING = 1e-6
"""A bound that is tight even for zeros; most data are near 1."""
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


def note(
    check: str, value: Array, bound: Array | float, free: Array | None = None, *, blocks: bool = False
) -> None:
    """Count the elements of a comparison.

    The scale of a value is its magnitude, or the root mean square of all values if that is larger: an element near
    zero is the difference of larger terms. A bound below NOTHING is tight at any scale. Infinities and NaN must be met;
    elements that the documentation leaves open are never tight. In `blocks`, the scale is the row's largest magnitude.
    """
    if not _open or not value.size:
        return
    if isinstance(bound, float) and bound == 0:  # tight at any scale
        tight = np.ones(value.shape, bool)
    else:
        tight = _below_scale(value, bound, blocks=blocks)
    if free is not None:
        tight = tight & ~free
    found = int(np.broadcast_to(tight, value.shape).sum())
    for shares in _open:
        own = shares.setdefault(check, [0, 0])
        own[0], own[1] = own[0] + found, own[1] + value.size


def _below_scale(value: Array, bound: Array | float, *, blocks: bool) -> Array:
    with np.errstate(all="ignore"):
        finite = np.isfinite(value)
        magnitude = np.abs(np.where(finite, value, 0)).astype(np.float64)
        typical = magnitude.max(-1, keepdims=True) if blocks else np.sqrt(np.square(magnitude).mean())
        scale = np.maximum(magnitude, typical)
        return np.asarray((np.asarray(bound) <= np.maximum(TIGHT * scale, NOTHING)) | ~finite)
