"""Cases of sorting, over dimension 0."""

from __future__ import annotations

import numpy as np

from backbay import DType, ops

from ..draw.data import ComputedNumbers, FillContext
from ..draw.draw import Draw
from ..draw.operand import Operand
from ..numbers.comparison import first_of
from ..numbers.encoding import Array
from ..suite.case import Call, case


def sortable(making: FillContext, operand: Operand) -> Array:
    """Rows with ties, infinities, NaN and zeros of both signs; in wide mode all elements differ, often by very little."""
    size = int(np.prod(operand.shape, dtype=np.int64))
    if making.mode == "wide":
        unit = making.rng.choice([0, -8] if operand.dtype is DType.F16 else [0, -60, 60])
        return np.asarray((making.rng.permutation(size) - size / 2) * 2.0**unit)
    numbers = making.rng.integers(-5, 6, size).astype(np.float64)
    if making.mode == "special" and size:
        numbers[making.rng.integers(0, size, 1 + size // 8)] = np.inf
        numbers[making.rng.integers(0, size, 1 + size // 8)] = -np.inf
        numbers[making.rng.integers(0, size, 1 + size // 8)] = -0.0
        if making.rng.random() < 0.5:
            numbers[making.rng.integers(0, size, 1 + size // 40)] = np.nan
    return numbers


SHOWN = 8  # the elements of a row that a message shows


def shown(row: Array, place: int) -> str:
    low = max(0, min(place - SHOWN // 2, len(row) - SHOWN))
    part = ", ".join(f"{number:.9g}" for number in row[low : low + SHOWN].tolist())
    return f"[{'... ' * (low > 0)}{part}{' ...' * (low + SHOWN < len(row))}]"


def _first(wrong: Array) -> tuple[tuple[int, ...], int]:
    """The index of the first marked element's row, and the element's place in it."""
    *row, place = first_of(wrong)
    return tuple(row), place


def _told(row: tuple[int, ...], place: int, x: Array, order: Array) -> str:
    """Where a row is wrong: its positions there, and the elements that they name."""
    positions = order[row]
    inside = np.clip(positions, 0, max(0, x.shape[-1] - 1))
    where = f"in row {row[::-1]} " if row else ""
    return (
        f"{where}at place {place}: positions {shown(positions, place)} of {shown(x[row][inside], place)}, "
        f"where x is {shown(x[row], place)}"
    )


def _each_once(x: Array, order: Array) -> None:
    extent = x.shape[-1]
    outside = (order < 0) | (order >= extent)
    if outside.any():
        raise AssertionError(f"a position outside of [0, {extent}) {_told(*_first(outside), x, order)}")
    places = np.argsort(order, axis=-1, kind="stable")
    ordered = np.take_along_axis(order, places, -1)
    again = ordered[..., 1:] == ordered[..., :-1]
    if again.any():
        *row, k = first_of(again)
        place = int(places[(*row, k + 1)])
        raise AssertionError(f"a position comes twice {_told(tuple(row), place, x, order)}")


def sorted_right(x: Array, got: Array) -> None:
    assert got.shape == x.shape, f"expected the shape {x.shape[::-1]}"
    x, got = np.atleast_1d(x), np.atleast_1d(got)
    _each_once(x, got)
    values = np.take_along_axis(x, got.astype(np.int64), -1)
    known = ~np.isnan(x).any(-1, keepdims=True)  # NaN may stand anywhere
    wrong = ~(values[..., 1:] >= values[..., :-1]) & known
    if wrong.any():
        raise AssertionError(f"not in order {_told(*_first(wrong), x, got)}")


def largest(x: Array, k: int, got: Array) -> None:
    x = np.atleast_1d(x)
    assert got.shape == (*x.shape[:-1], k), f"expected {k} of each row"
    _each_once(x, got)
    values = np.take_along_axis(x, got.astype(np.int64), -1)
    wanted = -np.sort(-x, axis=-1)[..., :k]
    wrong = (values != wanted) & ~np.isnan(x).any(-1, keepdims=True)
    if wrong.any():
        row, place = _first(wrong)
        told = f"not the {k} largest, largest first, which are {shown(wanted[row], place)}"
        raise AssertionError(f"{told}, {_told(row, place, x, got)}")


@case(ops.argsort)
def argsort(draw: Draw) -> Call:
    x = draw.floats(draw.rows(), ComputedNumbers(sortable))
    return Call((x,), verify=sorted_right)


@case(ops.top_k)
def top_k(draw: Draw) -> Call:
    shape = draw.rows()
    extent = shape[0] if shape else 1
    k = min(extent, draw.pick(1, extent, 2, 4, 8, 0, 33, 65, 100, 1025))
    if extent > 1025 and draw.flag():  # the last ones of a long list
        k = draw.pick(extent, extent - 1, 2000)
    return Call((draw.floats(shape, ComputedNumbers(sortable)), k), verify=largest)
