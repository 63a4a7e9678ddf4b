"""Comparison of results with expected results, by bits or against a bound for each element; and how much it proves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from backbay import DType

from ..fault import Fault
from .encoding import FLOOR, LARGEST, Array, decode, last_place, round_to, unit
from .number import Number

TIGHT = 0.1  # a bound is tight if it is below this share of the value's scale
NOTHING = 1e-6  # a bound that is tight even for zeros; most data are near 1
ENOUGH = 0.7  # the least share of tight elements that a case or relation should have

Shares = dict[str, list[int]]  # by check: the number of tight elements, and of all elements

_open: list[Shares] = []


@contextmanager
def measured() -> Iterator[Shares]:
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


@dataclass(frozen=True)
class ElementErrors:
    """The errors of a result by element, each divided by its bound; 0 where any value is right."""

    expected: Array
    got: Array
    shares: Array
    dtype: DType

    @property
    def largest(self) -> float:
        return float(np.nanmax(self.shares, initial=0.0))

    def last_places(self) -> Array:
        """The errors in units of the last place of the result's dtype: at most 0.5 if only the result is rounded."""
        distance = np.where(self.shares > 0, np.abs(self.got - self.expected), 0.0)
        return np.asarray(distance / last_place(self.expected, self.dtype))


class WorstElement(NamedTuple):
    """The worst element of a call: error / bound, the distance in last places, and the element with its operands."""

    share: float
    last_places: float
    element: str


Extremes = dict[str, WorstElement]
"""The worst elements by measure: a field of `WorstElement`."""
MEASURES = WorstElement._fields[:2]


def keep_worse(extremes: Extremes, others: Extremes) -> None:
    for measure, other in others.items():
        extremes[measure] = max(extremes.get(measure, other), other, key=attrgetter(measure))


def compare(
    expected: Number | Array,
    got: Array,
    dtype: DType,
    *,
    exact: bool,
    free: Array | None = None,
    instead: Sequence[float] | None = (),
    signed: bool = False,
    check: str = "",
    other: Any = None,
) -> ElementErrors | None:
    """The errors, or None if elements are compared exactly; Fault if the result is wrong.

    Elements marked by `free` may also have one of the values `instead`, or any value if it is None. If `signed`, a
    zero must have the expected sign. `other` is a second right result, such as that of the other reading of subnormal
    operands; each element must be that of one of both.
    """
    numbers, opened, bounded = decode(got, dtype), free, isinstance(expected, Number)
    shape, found = tuple(expected.shape), numbers.shape if bounded else got.shape
    if shape != found:
        raise Fault(check or "shape", f"expected the shape {shape[::-1]}, got {found[::-1]}")
    if free is not None and instead is not None and numbers.shape == shape:
        free = free & _is_one_of(numbers, instead, dtype)
    if not isinstance(expected, Number):
        note(check or "result", expected, 0.0, opened)
        compare_bits(expected, got, dtype, free, check or "bits", other)
        return None
    value = expected.value
    if signed:
        other_signs = (value == 0) & (numbers == 0) & (np.signbit(value) != np.signbit(numbers))
        refuse(other_signs, value, numbers, check or "sign")
    if exact and not dtype.is_quantized:  # -0 equals +0, since a sum may start from either
        note(check or "result", value, 0.0, opened)
        whole = round_to(value, dtype)
        refuse(~same(whole, numbers), whole, numbers, check or "exact", free=free)
        return None
    bound = result_bound(expected, dtype)
    note(check or "result", value, bound, opened, blocks=dtype.is_quantized)
    wrong, ratios = _beyond(expected, bound, numbers, dtype)
    if other is not None:
        still_wrong, others = _beyond(other, result_bound(other, dtype), numbers, dtype)
        wrong, ratios = wrong & still_wrong, np.where(wrong, others, ratios)
    refuse(wrong, value, numbers, check or "bound", bound=bound, free=free)
    return ElementErrors(value, numbers, ratios if free is None else np.where(free, 0.0, ratios), dtype)


def _is_one_of(numbers: Array, values: Sequence[float], dtype: DType) -> Array:
    found = np.zeros(numbers.shape, bool)
    for value in values:
        found |= np.isnan(numbers) if np.isnan(value) else numbers == round_to(np.asarray(value), dtype)
    return found


def compare_bits(
    expected: Array, got: Array, dtype: DType, free: Array | None, check: str, other: Array | None = None
) -> None:
    """Raise Fault unless stored elements are equal; -0 differs from +0, and all NaN are equal."""
    wrong = other_bits(expected, got, dtype)
    if other is not None:
        wrong &= other_bits(other, got, dtype)
    a, b = decode(expected, dtype), decode(got, dtype)
    if dtype.is_quantized and wrong.any():
        wrong = ~same(a, b)
        if not wrong.any():
            raise Fault(check, f"other bytes for the same numbers: {first_bits(expected, got, dtype)}")
    refuse(wrong, a, b, check, free=free)


def other_bits(expected: Array, got: Array, dtype: DType) -> Array:
    """Marks the stored elements with other bits; all NaN are equal."""
    whole = np.dtype(f"u{expected.dtype.itemsize}")
    wrong = np.ascontiguousarray(expected).view(whole) != np.ascontiguousarray(got).view(whole)
    wrong = wrong.reshape(expected.shape)  # of a scalar, too
    if dtype.is_float:
        wrong &= ~(np.isnan(decode(expected, dtype)) & np.isnan(decode(got, dtype)))
    return np.asarray(wrong)


def first_bits(left: Array, right: Array, dtype: DType) -> str:
    """The first stored element of two arrays whose bits differ, in both: its number, or a byte of a block."""
    whole = np.dtype(f"u{left.dtype.itemsize}")
    bits = [np.ascontiguousarray(raw).view(whole).reshape(left.shape) for raw in (left, right)]
    wrong = other_bits(left, right, dtype)
    if not wrong.any():  # only NaN differ
        wrong = bits[0] != bits[1]
    at = first_of(wrong)
    shown = [f"{part[at]:#0{2 + 2 * whole.itemsize}x}" for part in bits]
    if not dtype.is_quantized:
        numbers = (plain(decode(raw, dtype)[at]) for raw in (left, right))
        shown = [f"{number} ({text})" for number, text in zip(numbers, shown, strict=True)]
    what = "bytes" if dtype.is_quantized else "elements"
    return f"{int(wrong.sum())} of {wrong.size} {what}, at {at[::-1]} {shown[0]} and {shown[1]}"


def must_equal(got: Array, want: Array, what: str, check: str = "graph") -> None:
    """Raise Fault with `what` and the first element that differs; NaN equals NaN."""
    if got.shape != want.shape:
        raise Fault(check, f"{what}: expected the shape {want.shape[::-1]}, got {got.shape[::-1]}")
    refuse(~same(got, want), want, got, check, what=f"{what}: ")


def _beyond(expected: Number, bound: Array, got: Array, dtype: DType) -> tuple[Array, Array]:
    """Marks the elements beyond their bounds, and the errors / bounds.

    Infinities must be equal, and NaN meet NaN.
    """
    value = expected.value
    with np.errstate(all="ignore"):
        distance = np.abs(got - value)
        # A result that rounding may push beyond the type's range may be infinite.
        over = (
            np.isinf(got)
            & (np.abs(value) + bound >= LARGEST.get(dtype, np.inf))
            & (np.sign(got) == np.sign(value))
        )
        # A narrow accumulator may overflow to either infinity.
        spilled = np.isinf(bound) & (expected.cost.largest < np.inf)
        wrong = ~(same(got, value) | over | spilled | (distance <= bound))
        ratios = np.where(np.isfinite(value) & np.isfinite(got) & (bound > 0), distance / bound, 0.0)
    return wrong, ratios


def result_bound(expected: Number, dtype: DType) -> Array:
    """The bound, including the rounding of the result to its type."""
    error = np.where(np.isnan(expected.error), np.inf, expected.error)
    if dtype in FLOOR:
        error = (
            error
            + np.abs(np.where(np.isfinite(expected.value), expected.value, 0)) * unit(dtype)
            + FLOOR[dtype]
        )
    return np.asarray(np.broadcast_to(error, expected.value.shape))


def same(a: Array, b: Array) -> Array:
    """Marks equal numbers; NaN equals NaN."""
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def refuse(
    wrong: Array,
    expected: Array,
    got: Array,
    check: str,
    *,
    bound: Array | None = None,
    free: Array | None = None,
    what: str = "",
) -> None:
    """Raise Fault with the first wrong element and its position, dimension 0 first."""
    if free is not None:
        wrong = wrong & ~free
    if wrong.any():
        place = first_of(wrong)
        limit = "" if bound is None else f" within {float(bound[place]):.3g}"
        values = f"expected {plain(expected[place])}{limit}, got {plain(got[place])}"
        raise Fault(
            check, f"{what}{int(wrong.sum())} of {wrong.size} wrong: at {place[::-1]} {values}", place
        )


def first_of(wrong: Array) -> tuple[int, ...]:
    return tuple(map(int, np.argwhere(wrong)[0]))


def plain(number: Any) -> str:
    """A number of an array as Python writes it."""
    return repr(number.item())
