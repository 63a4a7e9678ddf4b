"""Numbers with an error bound for each element: the roundoffs of a formula in a given precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from backbay import DType, Precision

from .encoding import BLOCK_STEP, CLIPPED, FLOOR, SIGNIFICAND, Array, round_to, unit

HALF = 0.48  # of a whole step: half of it, less for the rounding of the scale that the step contains
UNDERFLOW = 1.2e-38  # the smallest normal number of f32; any step may flush numbers below it to zero


@dataclass(frozen=True)
class Cost:
    """Roundoffs of a computation: of each step, of each addition in a sum, and of operands when read."""

    step: float
    accumulate: float
    activation: DType = DType.F32
    largest: float = np.inf  # sums beyond it may overflow
    smallest: float = 0.0  # the error of an addition near zero
    flushes: bool = False  # operands below f32's normal range may be read as zeros
    weight: DType = DType.F32

    @classmethod
    def of(cls, precision: Precision, step: float = 0.0) -> Cost:
        """The roundoffs of a precision, with steps that round at least by `step`."""
        accumulate = unit(precision.accumulate) + 2.0**-53  # with the roundoff of the float64 formula
        return cls(max(step, accumulate), accumulate, precision.activation, weight=precision.weight)

    def of_sum(self, terms: int, magnitude: Array) -> Array:
        """The error bound of a sum; infinite if a narrow accumulator may overflow."""
        grown = terms * (self.accumulate * magnitude + self.smallest)
        return grown if self.largest == np.inf else np.where(magnitude > self.largest, np.inf, grown)


MANY_PRODUCTS = 50_000
"""For more products than this, rearranging the operands for a matrix product is faster than a plain loop."""


class Number:
    """An array in float64, with a bound of the error that the declared precision allows.

    Each operation adds its own cost to the errors of its operands, to first order. Infinities and NaN have no error.
    """

    __slots__ = ("cost", "error", "value")
    __array_priority__ = 1000  # NumPy leaves mixed arithmetic to this class

    def __init__(self, value: Array, error: Array | float, cost: Cost) -> None:
        self.value = value
        # An element for each value; most operands have none.
        none = isinstance(error, float) and error == 0
        self.error = np.zeros(np.shape(value)) if none else np.where(np.isfinite(value), error, 0.0)
        self.cost = cost

    def made(self, value: Array, error: Array | float) -> Number:
        """A result with the propagated error, plus the rounding of one step."""
        return Number(value, error + np.abs(value) * self.cost.step + UNDERFLOW, self.cost)

    def wrap(self, other: Number | Array | float) -> Number:
        return other if isinstance(other, Number) else Number(np.asarray(other, np.float64), 0.0, self.cost)

    # -- arithmetic --------------------------------------------------------------------------------------

    def __neg__(self) -> Number:
        return Number(-self.value, self.error, self.cost)

    def __add__(self, other: Number | Array | float) -> Number:
        other = self.wrap(other)
        return self.made(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Number | Array | float) -> Number:
        return self + (-self.wrap(other))

    def __mul__(self, other: Number | Array | float) -> Number:
        other = self.wrap(other)
        passed = np.abs(self.value) * other.error + np.abs(other.value) * self.error
        return self.made(self.value * other.value, passed + self.error * other.error)

    def __truediv__(self, other: Number | Array | float) -> Number:
        other = self.wrap(other)
        value = self.value / other.value
        below = np.maximum(np.abs(other.value) - other.error, 0)
        return self.made(value, (self.error + np.abs(value) * other.error) / below)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Array | float) -> Number:
        return self.wrap(other) - self

    # -- functions ---------------------------------------------------------------------------------------

    def monotone(
        self, function: Callable[[Array], Array], *, steps: float = 4, argument: float = 0
    ) -> Number:
        """A monotone function with an error of `steps` roundoffs of its result and `argument` of its argument."""
        finite = np.where(np.isfinite(self.value), self.value, 0.0)  # infinities have no error
        error = self.error + argument * self.cost.step * np.abs(finite)
        value = function(self.value)
        above, below = function(self.value + error), function(self.value - error)
        passed = np.maximum(np.abs(above - value), np.abs(below - value))
        return Number(value, passed + steps * self.cost.step * np.abs(value) + UNDERFLOW, self.cost)

    def exp(self) -> Number:
        # Argument reduction rounds a multiple of the argument; results below the normal range may be flushed.
        return self.monotone(np.exp, argument=2)

    def sqrt(self) -> Number:
        value = np.sqrt(self.value)
        near = self.error / np.where(value > 0, value, 1)
        passed = np.where(self.value > self.error, near, np.sqrt(self.error))
        return Number(value, passed + 2 * self.cost.step * value, self.cost)

    def tanh(self) -> Number:
        # Rational approximations, such as ONNX Runtime's, are 6 steps off near 1.
        return self.monotone(np.tanh, steps=8, argument=2)

    def sigmoid(self) -> Number:
        return self.monotone(sigmoid, argument=2)

    def clip(self, low: float, high: float) -> Number:
        return Number(np.clip(self.value, low, high), self.error, self.cost)

    def wave(self, function: Callable[[Array], Array], *, argument: float = 2) -> Number:
        """A sine or cosine: the argument's error, and `argument` roundoffs of it, are added to the result's."""
        value = function(self.value)
        error = np.minimum(self.error + argument * self.cost.step * np.abs(self.value), 2.0)
        return Number(value, error + 4 * self.cost.step, self.cost)

    # -- sums --------------------------------------------------------------------------------------------

    def sum(self, axis: int = -1) -> Number:
        """A sum in any order; the axis keeps extent 1."""
        terms = self.value.shape[axis]
        value = self.value.sum(axis, keepdims=True)
        grown = self.cost.of_sum(terms, np.abs(self.value).sum(axis, keepdims=True))
        return self.made(value, self.error.sum(axis, keepdims=True) + grown)

    def cumsum(self) -> Number:
        terms = self.value.shape[-1]
        grown = self.cost.of_sum(terms, np.abs(self.value).cumsum(-1))
        return self.made(self.value.cumsum(-1), self.error.cumsum(-1) + grown)

    def einsum(self, subscripts: str, other: Number, terms: int) -> Number:
        """A sum of `terms` products, in any order, each of which may be rounded."""

        def contract(a: Array, b: Array) -> Array:
            result: Array = np.einsum(subscripts, a, b, optimize=many)
            return result

        a, b = np.abs(self.value), np.abs(other.value)
        many = a.size * prod(b.shape[axis] for axis in own_axes(subscripts)) > MANY_PRODUCTS
        passed = self.cost.of_sum(terms + 1, contract(a, b))
        if other.error.any():
            passed = passed + contract(a, other.error)
        if self.error.any():
            passed = passed + contract(self.error, b + other.error)
        return self.made(contract(self.value, other.value), passed)

    def within(self, low: Array, high: Array, terms: int) -> Number:
        """This mean of `terms` values from `low` to `high`: its error is at most their range, and the rounding.

        Weights with a large error leave a mean open, but not their sum, which is 1 but for their rounding.
        """
        kind, cost = self.cost.activation, self.cost
        lost = unit(kind) + terms * FLOOR[kind] if kind in SIGNIFICAND else terms * BLOCK_STEP[kind]
        lost += 4 * (terms + 4) * max(cost.step, cost.accumulate)
        slack = np.maximum(np.abs(low), np.abs(high)) * lost + terms * cost.smallest
        widest = np.maximum(high - self.value, self.value - low) + slack
        return Number(self.value, np.fmin(self.error, widest), cost)

    # -- moving elements ---------------------------------------------------------------------------------

    def moved(self, function: Callable[[Array], Array]) -> Number:
        """Values and errors rearranged by the same function."""
        moved = Number.__new__(Number)  # the errors are final: infinities and NaN have none
        moved.value, moved.error, moved.cost = function(self.value), function(self.error), self.cost
        return moved

    def __getitem__(self, key: Any) -> Number:
        return self.moved(lambda a: a[key])

    def reshape(self, *shape: int) -> Number:
        return self.moved(lambda a: a.reshape(shape))

    def transpose(self, *axes: int) -> Number:
        return self.moved(lambda a: a.transpose(axes))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def activation(self) -> Number:
        """The operand as read by a backend that rounds activations to its declared type."""
        return self._rounded(self.cost.activation)

    def weight(self) -> Number:
        """The operand as read by a backend that rounds weights to its declared type."""
        return self._rounded(self.cost.weight)

    def _rounded(self, kind: DType) -> Number:
        if kind is DType.F64:
            return self
        if kind in SIGNIFICAND:
            lost = self.narrowed(kind)
            return Number(self.value, self.error + unit(kind) * lost, self.cost) if lost.any() else self
        return Number(self.value, self.error + block_error(self.value, kind), self.cost)

    def narrowed(self, kind: DType) -> Array:
        """The magnitudes of the elements that the type cannot hold exactly; 0 for all others."""
        held = round_to(self.value, kind) == self.value
        return np.where(held, 0.0, np.abs(self.value) + FLOOR[kind] / unit(kind))


@cache
def own_axes(subscripts: str) -> list[int]:
    """The axes of the second operand, counted from its last one, whose labels the first operand has not."""
    first, second = subscripts.partition("->")[0].split(",")
    return [-n for n, label in enumerate(reversed(second), 1) if label not in first]


def block_error(value: Array, kind: DType) -> Array:
    """The largest change of each element by quantizing in blocks along the last axis."""
    size, extent = kind.block_size, value.shape[-1]
    if value.size == 0:
        return np.zeros(value.shape)
    padded = np.pad(np.abs(value), [(0, 0)] * (value.ndim - 1) + [(0, -extent % size)])
    peaks = padded.reshape(*value.shape[:-1], -1, size).max(-1, initial=0.0)
    # A scale below f16's normal range is rounded to f16's coarse grid of subnormals.
    coarse = 0.0 if kind is DType.Q8_K else np.minimum(peaks, 128 * 2.0**-25)
    steps = peaks * BLOCK_STEP[kind]
    step: Array = np.repeat(steps + coarse, size, axis=-1)[..., :extent]
    if kind in CLIPPED:  # only near the far end, where codes end early, is the error more than half a step
        far = np.abs(value) > CLIPPED[kind] * np.repeat(peaks, size, axis=-1)[..., :extent]
        step = np.where(far, step, step - np.repeat(steps, size, axis=-1)[..., :extent] * HALF)
    return step


def scalar(value: float, cost: Cost) -> Number:
    """A scalar parameter, which a backend may keep in single precision."""
    return Number(np.asarray(value, np.float64), abs(value) * 2.0**-24, cost)


def sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, small) / (1 + small))


def concatenate(parts: Sequence[Number], axis: int) -> Number:
    value = np.concatenate([part.value for part in parts], axis)
    return Number(value, np.concatenate([part.error for part in parts], axis), parts[0].cost)
