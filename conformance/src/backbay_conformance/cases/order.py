"""Cases of sorting, over dimension 0."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ..draw.data import Made, Making
from ..draw.draw import Draw
from ..draw.operand import Operand
from ..numbers.rounding import Array
from ..suite.case import Call, case


def sortable(making: Making, operand: Operand) -> Array:
    """Rows with ties, infinities, NaN and zeros of both signs; in wide mode all elements differ."""
    size = int(np.prod(operand.shape, dtype=np.int64))
    if making.mode == "wide":
        return np.asarray(making.rng.permutation(size) - size / 2)
    numbers = making.rng.integers(-5, 6, size).astype(np.float64)
    if making.mode == "special" and size:
        numbers[making.rng.integers(0, size, 1 + size // 8)] = np.inf
        numbers[making.rng.integers(0, size, 1 + size // 8)] = -np.inf
        numbers[making.rng.integers(0, size, 1 + size // 8)] = -0.0
        if making.rng.random() < 0.5:
            numbers[making.rng.integers(0, size, 1 + size // 40)] = np.nan
    return numbers


def _each_once(order: Array, extent: int) -> None:
    inside = ((order >= 0) & (order < extent)).all()
    assert inside, f"a position lies outside of [0, {extent})"
    ordered = np.sort(order, axis=-1)
    assert (ordered[..., 1:] != ordered[..., :-1]).all(), "a position comes twice"


def sorted_right(x: Array, got: Array) -> None:
    assert got.shape == x.shape, f"expected the shape {x.shape[::-1]}"
    x, got = np.atleast_1d(x), np.atleast_1d(got)
    _each_once(got, x.shape[-1])
    values = np.take_along_axis(x, got.astype(np.int64), -1)
    wrong = ~(values[..., 1:] >= values[..., :-1]) & ~np.isnan(x).any(
        -1, keepdims=True
    )  # NaN may stand anywhere
    assert not wrong.any(), f"not in order after {np.argwhere(wrong)[0][::-1].tolist()}"


def largest(x: Array, k: int, got: Array) -> None:
    x = np.atleast_1d(x)
    assert got.shape == (*x.shape[:-1], k), f"expected {k} of each row"
    _each_once(got, x.shape[-1])
    values = np.take_along_axis(x, got.astype(np.int64), -1)
    wanted = -np.sort(-x, axis=-1)[..., :k]
    wrong = (values != wanted) & ~np.isnan(x).any(-1, keepdims=True)
    assert not wrong.any(), f"not the {k} largest, largest first: {values[wrong][:3].tolist()}"


@case(ops.argsort)
def argsort(draw: Draw) -> Call:
    x = draw.floats(draw.rows(), Made(sortable))
    return Call((x,), verify=sorted_right)


@case(ops.top_k)
def top_k(draw: Draw) -> Call:
    shape = draw.rows()
    extent = shape[0] if shape else 1
    k = min(extent, draw.pick(1, extent, 2, 4, 8, 0, 33, 65, 100))
    return Call((draw.floats(shape, Made(sortable)), k), verify=largest)
