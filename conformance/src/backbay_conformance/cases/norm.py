"""Cases of softmax, the norms and reductions, over dimension 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from backbay import DType, Op, ops

from ..draw.data import ComputedNumbers, Fill, FillContext, Numbers
from ..draw.draw import Draw
from ..draw.operand import Operand, longer
from ..numbers.encoding import LARGEST, Array
from ..numbers.number import Number, scalar
from ..suite.case import Args, Call, case


def rows_batch(draw: Draw, shape: tuple[int, ...], *shared: Operand | None) -> dict[str, Any]:
    """Relations of an op over dimension 0: one of the other dimensions is a batch, whose rows share the weights."""
    if len(shape) < 2:
        return {}
    split = draw.integer(1, len(shape) - 1)
    return {"batch": (split, *[None for operand in shared if operand is not None]), "batch_out": split}


def of_rows(formula: Callable[..., Number], *, keeps: bool = True) -> Callable[..., Number]:
    """The formula, for a scalar too, which is a row of one; `keeps`: the result then is a scalar again."""

    def extended(x: Number, *rest: Any) -> Number:
        if x.shape:
            return formula(x, *rest)
        y = formula(x.reshape(1), *rest)
        return y.reshape() if keeps else y

    return extended


# -- softmax ---------------------------------------------------------------------------------------------


def softmax_formula(x: Number) -> Number:
    if x.shape[-1] == 0:
        return x
    peak = Number(x.value.max(-1, keepdims=True), 0.0, x.cost)
    powers = (x - peak).exp()
    return powers / powers.sum()


HIDDEN = (-np.inf, -np.inf, -65504.0, -1e9)
"""What models give positions that have no weight; a type rounds it to its own range."""


def scores(making: FillContext, operand: Operand) -> Array:
    """Rows as in attention: some masked, some fully masked, some with ties, some with scores far apart."""
    row = operand.shape[0] if operand.shape else 1
    count = int(np.prod(operand.shape[1:], dtype=np.int64))
    numbers = making.rng.standard_normal((count, row)) * making.rng.choice([1, 10, 100], (count, 1))
    if making.exact:  # all scores of a row are equal, and so are their results
        numbers[...] = making.rng.integers(-4, 5, (count, 1))
        return np.asarray(numbers)
    hidden = making.rng.choice(HIDDEN)
    numbers[making.rng.random((count, row)) < 0.2 * making.rng.integers(0, 3, (count, 1))] = hidden
    if row and making.rng.random() < 0.5:  # one far above the others, whose powers overflow if it is missed
        numbers[np.arange(count), making.rng.integers(row, size=count)] = making.rng.uniform(300, 400, count)
    if making.mode == "special" and row and count:
        for value in (-np.inf, np.nan, np.inf):
            where = making.rng.integers(count)
            if np.isneginf(value) or making.rng.random() < 0.5:
                numbers[where, :] = -np.inf
            numbers[where, making.rng.integers(row)] = value
    return np.asarray(numbers)


@case(ops.softmax)
def softmax(draw: Draw) -> Call:
    shape = draw.rows()
    x = draw.floats(shape, ComputedNumbers(scores))
    call = Call((x,), of_rows(softmax_formula), exact=False, **rows_batch(draw, shape))
    if shape and shape[0] and draw.flag():  # columns of -infinity at the end, whose softmax is 0
        extra = draw.integer(1, 40)
        call.padded = Call((longer(x, extra, -np.inf),), softmax_formula), lambda raw: raw[..., :-extra]
    return call


# -- norms -----------------------------------------------------------------------------------------------


def mean_of(x: Number) -> Number:
    return x.sum() / float(x.shape[-1]) if x.shape[-1] else x.sum() / np.zeros(())


def affine(y: Number, weight: Number | None, bias: Number | None = None) -> Number:
    y = y if weight is None else y * weight.reshape(-1)
    return y if bias is None else y + bias.reshape(-1)


def rms_formula(x: Number, weight: Number | None, eps: float) -> Number:
    return affine(x / (mean_of(x * x) + scalar(eps, x.cost)).sqrt(), weight)


def layer_formula(x: Number, weight: Number | None, bias: Number | None, eps: float) -> Number:
    centred = x - mean_of(x)
    return affine(centred / (mean_of(centred * centred) + scalar(eps, x.cost)).sqrt(), weight, bias)


def l2_formula(x: Number, eps: float) -> Number:
    length = (x * x).sum().sqrt()
    return x / length.clip(float(np.float32(eps)), np.inf)


EPS = (1e-5, 1e-6, 0.5, 3.0, 0.0, 1e-2, 1e-8)
MODEST = Numbers("0", low=-250, high=250)  # a plain range
BROKEN = Numbers("0n", low=-250, high=250)  # MODEST, with NaN: a NaN affects only its own row


def with_zero_row(fill: Fill, making: FillContext, operand: Operand) -> Array:
    """Data with a row of zeros in special mode: a norm without eps divides it by 0."""
    raw = np.array(fill(making, operand))
    rows = raw.reshape(-1, operand.shape[0] if operand.shape else 1)
    if making.mode == "special" and rows.size:
        rows[making.rng.integers(len(rows))] = 0
    return raw


def far_from_zero(making: FillContext, operand: Operand) -> Array:
    """Rows with a small spread around a large mean: mean(x^2) - mean(x)^2 cancels."""
    size = int(np.prod(operand.shape, dtype=np.int64))
    peak = 1000 if operand.dtype is DType.F32 else 200
    return np.asarray(making.rng.choice([-peak, peak]) + making.rng.uniform(-1, 1, size))


def massive(making: FillContext, operand: Operand) -> Array:
    """Rows of ordinary numbers, some with a few that are tens of thousands of times larger, as models have them."""
    row, size = operand.shape[0] if operand.shape else 1, int(np.prod(operand.shape, dtype=np.int64))
    numbers = making.rng.standard_normal((size // max(1, row), row))
    if size:
        numbers[making.rng.random(len(numbers)) < 0.7, making.rng.integers(row)] *= 50000
    return np.clip(numbers, -LARGEST[operand.dtype], LARGEST[operand.dtype])


def modest(draw: Draw, fill: Fill, eps: float) -> Fill:
    """The data of a norm: `fill`, now and then with a row of zeros, or with massive numbers: f16 does not hold their squares.

    Or numbers so small that eps counts.
    """
    zeros = partial(with_zero_row, fill)
    fill = draw.fill(fill, fill, zeros, fill, fill, zeros, ComputedNumbers(massive), ComputedNumbers(massive))
    return smaller(draw, fill, eps)


def smaller(draw: Draw, fill: Fill, eps: float) -> Fill:
    """`fill`, or now and then numbers so small that eps counts."""
    return draw.fill(fill, fill, fill, ComputedNumbers(partial(as_small, eps))) if eps > 0 else fill


def as_small(eps: float, making: FillContext, operand: Operand) -> Array:
    """Numbers whose squares are about as large as eps, or smaller."""
    size = int(np.prod(operand.shape, dtype=np.int64))
    return np.asarray(making.rng.standard_normal(size) * eps**0.5 * making.rng.choice([1.0, 0.1, 0.5]))


def spread(draw: Draw, fill: Fill, shape: tuple[int, ...]) -> Fill:
    """Data for ops that subtract the mean: now and then with a mean far from zero.

    Short rows are left out: their elements are often equal, and then nothing is known about their spread.
    """
    if not shape or shape[0] < 8:
        return fill
    return draw.fill(fill, fill, fill, ComputedNumbers(far_from_zero))


def with_massive(draw: Draw, fill: Fill) -> Fill:
    return draw.fill(fill, fill, fill, fill, ComputedNumbers(massive))


@case(ops.rms_norm)
def rms_norm(draw: Draw) -> Call:
    shape, eps = draw.rows(least=1), draw.many_digits(draw.by_turn(*EPS))
    x = draw.floats(shape, modest(draw, BROKEN, eps))
    weight = maybe_weight(draw, shape)
    return norm_call(draw, (x, weight, eps), rms_formula)


def maybe_weight(draw: Draw, shape: tuple[int, ...]) -> Operand | None:
    return draw.floats(shape[:1] or (1,), Numbers(), dtype=draw.other_float()) if draw.flag() else None


def norm_call(draw: Draw, args: Args, formula: Callable[..., Number]) -> Call:
    """The call of a norm of x; now and then with another eps for the same data."""
    x, *shared, _ = args
    relations = rows_batch(draw, x.shape, *shared)
    altered = {"eps": 7.0} if draw.flag(4) else {}
    return Call(args, of_rows(formula), exact=False, altered=altered, **relations)


@case(ops.layer_norm)
def layer_norm(draw: Draw) -> Call:
    shape, eps = draw.rows(least=1), draw.many_digits(draw.by_turn(*EPS))
    x = draw.floats(shape, smaller(draw, with_massive(draw, spread(draw, BROKEN, shape)), eps))
    weight, bias = maybe_weight(draw, shape), maybe_weight(draw, shape)
    return norm_call(draw, (x, weight, bias, eps), layer_formula)


@case(ops.l2_norm)
def l2_norm(draw: Draw) -> Call:
    shape, eps = draw.rows(least=1), draw.many_digits(draw.pick(1e-12, 1e-6, 0.5, 0.0, 50.0))
    squares = eps * eps / max((*shape[:1], 1))  # their sum is about eps^2
    return norm_call(draw, (draw.floats(shape, modest(draw, MODEST, squares)), eps), l2_formula)


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
        ends = inf if whole else 250.0
        usual = Numbers(special, -ends, ends, terms=terms, loud=whole)
        lone = replace(usual, lone=True)
        fill = lone if terms > 64 else draw.fill(usual, lone)  # many special values make every long sum NaN
        if not (whole or (exact and draw.exact)):  # sums of the others are rounded
            fill = with_massive(draw, spread(draw, fill, shape))
        x = draw.floats(shape, fill)
        own = of_rows(formula, keeps=op is ops.cumsum)
        return Call((x,), own, exact=exact, **rows_batch(draw, shape))

    case(op)(draw_call)


row_case(ops.sum_rows, lambda x: x.sum(), exact=True, special="0ni", whole=True)
row_case(ops.mean, mean_of, exact=True, special="0ni", whole=False)
row_case(ops.cumsum, lambda x: x.cumsum(), exact=True, special="0ni", whole=True)
row_case(ops.variance, variance_formula, exact=False, special="0n", whole=False)
row_case(ops.stddev, stddev_formula, exact=False, special="0n", whole=False)
