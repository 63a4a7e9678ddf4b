"""Exact results: float64 formulas, rounded once, on operands of any layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backbay import Context, DType, Tensor

Array = NDArray[Any]

FLOATS = (DType.F32, DType.F16, DType.BF16)
LAYOUTS = ("plain", "permuted", "stepped")
FORMATS = {DType.F32: (24, -149, 128), DType.F16: (11, -24, 16), DType.BF16: (8, -133, 128)}
"""Of each float: bits of its significand, the exponent of its least number, and that of its first infinity."""
ROUNDED = {"rtol": 2**-24, "atol": 1e-12}
"""One rounding to f32; 1e-12 for angles of some thousands in float64."""


def rounded(x: Any, dtype: DType) -> Array:
    """Float64 numbers rounded once to a float dtype, ties to even, as float64: with integers, not with casts."""
    bits, least, end = FORMATS[dtype]
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - bits, least)
        y = np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent)
        return np.where(np.abs(y) >= 2.0**end, np.copysign(np.inf, x), y)


def numbers(random: np.random.Generator, shape: Iterable[int], dtype: DType = DType.F32) -> Array:
    """Numbers that the dtype holds exactly, of several magnitudes, as float64."""
    shape = tuple(shape)
    return rounded(random.standard_normal(shape) * 2.0 ** random.integers(-3, 3, shape), dtype)


def normal(random: np.random.Generator, *shape: int) -> Array:
    """float32 numbers, held as float64 for formulas to be exact in."""
    return random.standard_normal(shape).astype(np.float32).astype(np.float64)


def leaf(ctx: Context, x: Array, dtype: DType = DType.F32, layout: str = "plain") -> Tensor:
    """A tensor of numbers, x[i,j] at dimension 0 = i, 1 = j; a view for layouts other than plain."""
    x = np.asarray(x)
    if layout == "permuted" and x.ndim > 1:
        turned = ctx.empty(dtype, *x.shape[::-1]).from_floats(x)
        return turned.permute(ctx, *range(x.ndim)[::-1])
    if layout == "stepped" and x.ndim:
        room = np.full([2 * x.shape[0] + 3, *[n + 2 for n in x.shape[1:]]], np.nan)
        room[(slice(1, 1 + 2 * x.shape[0], 2), *[slice(1, 1 + n) for n in x.shape[1:]])] = x
        view = ctx.empty(dtype, *room.shape).from_floats(room.T)
        view = view.slice(ctx, 0, 1, 1 + 2 * x.shape[0], 2)
        for n, extent in enumerate(x.shape[1:], 1):
            view = view.slice(ctx, n, 1, 1 + extent)
        return view
    return ctx.empty(dtype, *x.shape).from_floats(x.T)


def value(ctx: Context, y: Tensor) -> Array:
    """The computed numbers of a tensor, dimension 0 first."""
    ctx.forward(y).compute(y)
    return y.numpy().T


class Case(NamedTuple):
    """An op, the shapes of its operands (dimension 0 first; None for an absent one), and its formula."""

    op: str
    shapes: tuple[tuple[int, ...] | None, ...]
    formula: Callable[..., Any]
    attributes: dict[str, Any] = {}
    slack: float = 0.0  # how far float64 sums and C's functions may differ, relative to the largest number

    def __str__(self) -> str:
        shapes = "x".join(str(list(shape)) if shape is not None else "-" for shape in self.shapes)
        text = "".join(f" {name}={value}" for name, value in self.attributes.items())
        return f"{self.op} {shapes}{text}".replace(" ", "")


def check(
    ctx: Context, case: Case, dtypes: Iterable[DType], layouts: Iterable[str], result: DType | None
) -> None:
    """Run a case on random numbers, and compare with its formula, rounded once."""
    random = np.random.default_rng(len(case.shapes) + sum(sum(shape or ()) for shape in case.shapes))
    data = [
        None if shape is None else numbers(random, shape, dtype)
        for shape, dtype in zip(case.shapes, dtypes, strict=False)
    ]
    operands = [
        None if x is None else leaf(ctx, x, dtype, layout)
        for x, dtype, layout in zip(data, dtypes, layouts, strict=False)
    ]
    x, *others = operands
    assert x is not None
    y = getattr(x, case.op)(ctx, *others, **case.attributes)
    with np.errstate(all="ignore"):
        expected = np.asarray(case.formula(*data, **case.attributes), np.float64)
    assert y.shape == expected.shape
    assert y.dtype is (x.dtype if result is None else result)
    assert_rounds_to(value(ctx, y), expected, y.dtype, case.slack)


def assert_rounds_to(y: Array, expected: Array, dtype: DType, slack: float = 0.0) -> None:
    """Each number is the expected one, rounded, or within the slack of it."""
    y = y.astype(np.float64)
    finite = np.abs(expected[np.isfinite(expected)])
    room = slack * (1 + finite.max(initial=0))
    low, high = rounded(expected - room, dtype), rounded(expected + room, dtype)
    right = (low <= y) & (y <= high) | np.isnan(y) & np.isnan(expected)
    assert right.all(), f"{dtype}: {y[~right][:4]} instead of {expected[~right][:4]}"
