"""Cases of reductions, over dimension 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backbay import Op, ops

from ..draw.data import Fill, Made, Numbers
from ..draw.draw import Draw
from ..numbers.number import Number
from ..suite.case import Call, case
from .norm import massive, mean_of, of_rows, rows_batch, spread


def variance_formula(x: Number) -> Number:
    centred = x - mean_of(x)
    return mean_of(centred * centred)


def stddev_formula(x: Number) -> Number:
    return variance_formula(x).sqrt()


def row_case(
    op: Op[Any, Any], formula: Callable[..., Number], *, exact: bool, special: str, whole: bool
) -> None:

    def draw_call(draw: Draw) -> Call:
        shape = draw.rows()
        if draw.exact and not whole and shape and shape[0]:  # a mean of 2^n integers is exact
            shape = (1 << (shape[0].bit_length() - 1), *shape[1:])
        terms = max(1, *shape[:1], 1)
        lone = draw.flag() or terms > 64  # many special values make every long sum NaN
        fill: Fill = Numbers(special, terms=terms, lone=lone, loud=True)
        if not whole:
            numbers = Numbers(special, terms=terms, lone=lone, low=-250, high=250)
            fill = spread(draw, numbers, shape)
            fill = Made(massive) if draw.flag(5) else fill
            fill = numbers if exact and draw.exact else fill  # sums of the others are rounded
        x = draw.floats(shape, fill)
        own = of_rows(formula, keeps=op is ops.cumsum)
        return Call((x,), own, exact=exact, **rows_batch(draw, shape))

    case(op)(draw_call)


row_case(ops.sum_rows, lambda x: x.sum(), exact=True, special="0ni", whole=True)
row_case(ops.mean, mean_of, exact=True, special="0ni", whole=False)
row_case(ops.cumsum, lambda x: x.cumsum(), exact=True, special="0ni", whole=True)
row_case(ops.variance, variance_formula, exact=False, special="0n", whole=False)
row_case(ops.stddev, stddev_formula, exact=False, special="0n", whole=False)
