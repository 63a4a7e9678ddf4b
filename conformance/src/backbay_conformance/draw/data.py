"""Data for operands: small integers for exact comparison, a wide range of magnitudes, and special values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from backbay import DType, Precision

from ..numbers.encoding import LARGEST, NUMPY, Array, encode, significand

if TYPE_CHECKING:
    from .operand import Operand

Mode = Literal["exact", "wide", "special", "hunt"]


@dataclass(frozen=True)
class FillContext:
    """The context in which data are made: random generator, mode, declared precision, and variant."""

    rng: np.random.Generator
    mode: Mode
    precision: Precision
    variant: int

    @property
    def exact(self) -> bool:
        return self.mode == "exact"


@dataclass(frozen=True)
class CentredNumbers:
    """Numbers around a centre, each of which is a choice of a hunt: `spread` is the largest relative distance from it.

    mixed     their signs are at random
    outlier   one of them, at this share of their number, has another magnitude
    """

    centre: float
    spread: float
    mixed: bool
    outlier: tuple[float, float] | None

    def numbers(self, rng: np.random.Generator, size: int) -> Array:
        numbers = self.centre * (1 + self.spread * rng.uniform(-1, 1, size))
        if self.mixed:
            numbers *= rng.choice([-1.0, 1.0], size)
        if self.outlier is not None and size:
            place, magnitude = self.outlier
            numbers[int(place * size)] = magnitude
        return np.asarray(numbers)


Fill = Callable[[FillContext, "Operand"], Array]
"""Makes stored elements for an operand, as an array of any shape."""

ROOMY = {DType.F64, DType.F32, DType.BF16}
"""Types of activations that hold far larger numbers than f16."""
SPECIALS: dict[str, tuple[float, ...]] = {
    "0": (0.0, -0.0),
    "n": (np.nan,),
    "i": (np.inf, -np.inf),
    "+": (np.inf,),
    "-": (-np.inf,),
    "s": (1e-40, -3e-42, 6e-8, -6e-8),  # subnormals, of f32 and of f16
    "b": (3e38, -3e38, 65504.0, -65504.0),  # near the largest of f32, and the largest of f16
}


@dataclass(frozen=True)
class Numbers:
    """Numbers of a float type, or blocks of a quantized one.

    special     which special values may come up, by the letters of SPECIALS
    low, high   bounds, in every mode
    terms       how many products or terms one result sums; exact data leave room for the sum
    partner     the other factor of the products
    most        the largest integer in exact mode
    positive    no number is negative
    few         special values come up only once or twice, so that some sums over rows stay finite
    lone        a row has at most one special value, so that its sum may be an infinity
    loud        now and then numbers that f16 does not hold, if the declared activations hold them
    """

    special: str = "0"
    low: float = -np.inf
    high: float = np.inf
    terms: int = 1
    partner: Operand | None = None
    most: int = 4095
    positive: bool = False
    few: bool = False
    lone: bool = False
    loud: bool = False

    def __call__(self, making: FillContext, operand: Operand) -> Array:
        size = int(np.prod(operand.shape, dtype=np.int64))
        if operand.dtype.is_quantized:
            return blocks(making, operand.dtype, size // operand.dtype.block_size)
        if making.exact:
            numbers = self._integers(making, operand, size)
        elif operand.focus is not None:
            numbers = operand.focus.numbers(making.rng, size)
        else:
            numbers = self._spread(making.rng, size)
            rows = numbers.reshape(-1, operand.shape[0] if operand.shape else 1) if size else numbers
            if size and making.rng.integers(6) == 0:
                _weigh_ends(making.rng, rows)
            if self.loud and making.precision.activation in ROOMY and making.rng.integers(4) == 0:
                numbers *= 2.0 ** int(making.rng.integers(9, 15))
            if making.mode == "special" and self.special and size:
                self._sprinkle(making.rng, rows)
        if self.positive:
            numbers = np.abs(numbers)
        largest = LARGEST[operand.dtype]
        low, high = max(self.low, -largest), min(self.high, largest)
        clipped = np.where(np.isfinite(numbers), np.clip(numbers, low, high), numbers)
        return with_payloads(making.rng, encode(clipped, operand.dtype), operand.dtype)

    def _integers(self, making: FillContext, operand: Operand, size: int) -> Array:
        """Integers that the type and the activation type hold exactly, and whose sums stay exact."""
        bits = significand(operand.dtype)
        if operand.activated:
            bits = min(bits, significand(making.precision.activation))
        room = 2.0 ** min(24, significand(making.precision.accumulate)) / max(1, self.terms)
        if self.partner is not None:
            room /= self.partner.peak
        elif self.terms > 1:
            room /= 2  # leave room for the other factor
        limit = int(max(min(1, self.most), min(self.most, 2**bits - 1, room)))
        numbers = making.rng.integers(-limit, limit + 1, size).astype(np.float64)
        kind = making.precision.activation
        if operand.activated and kind.is_quantized:
            return _for_blocks(making.rng, numbers, kind, operand.shape[0] if operand.shape else 1, room)
        return numbers

    def _spread(self, rng: np.random.Generator, size: int) -> Array:
        """Signs at random; magnitudes near 1, or from e^-12 to e^6."""
        style = rng.integers(4)
        if style == 0:
            return np.asarray(rng.standard_normal(size))
        if style == 1:
            return np.asarray(rng.uniform(-1, 1, size) * 8)
        magnitude = np.exp(rng.uniform(-12, 6, size))
        if style == 3 and size:  # a few large ones that cancel
            magnitude[rng.integers(0, size, 1 + size // 8)] = np.exp(6)
        return np.asarray(np.where(rng.random(size) < 0.5, -magnitude, magnitude))

    def _sprinkle(self, rng: np.random.Generator, rows: Array) -> None:
        values = [value for letter in self.special for value in SPECIALS[letter]]
        if self.lone:
            chosen = np.flatnonzero(rng.random(len(rows)) < 0.7)
            rows[chosen, rng.integers(rows.shape[1], size=chosen.size)] = rng.choice(values, chosen.size)
            return
        count = int(rng.integers(1, 3)) if self.few else 1 + rows.size // 6
        rows.reshape(-1)[rng.integers(0, rows.size, count)] = rng.choice(values, count)


def _weigh_ends(rng: np.random.Generator, rows: Array) -> None:
    """Make the last elements of each row much larger than the others: a sum without them is far off."""
    count = 1 + int(rng.integers(1 + rows.shape[1] // 8))
    rows[:, :-count] *= 2.0**-6
    rows[:, -count:] = np.exp(rng.uniform(1, 5, (len(rows), count))) * rng.choice([-1, 1], (len(rows), count))


QUIET = {DType.F32: 0x7FC00000, DType.F16: 0x7E00, DType.BF16: 0x7FC0}
"""The bits of a NaN without sign and payload."""


def with_payloads(rng: np.random.Generator, raw: Array, dtype: DType) -> Array:
    """Each NaN with a drawn sign and payload, often with all bits set: rounding by addition would then overflow."""
    bits: Array = np.ascontiguousarray(raw).view(f"u{raw.itemsize}")
    quiet, ones = QUIET[dtype], (1 << 8 * raw.itemsize) - 1
    infinity = quiet & quiet << 1  # a quiet NaN's bits without its quiet bit
    nan = (bits & ones >> 1) > infinity
    count = int(nan.sum())
    if count:
        drawn = quiet | rng.integers(0, ones, count, endpoint=True)
        bits[nan] = np.where(rng.random(count) < 0.5, ones, drawn)
    return bits.view(raw.dtype)


def _for_blocks(rng: np.random.Generator, numbers: Array, kind: DType, row: int, room: float) -> Array:
    """Integers that blocks of 8-bit numbers hold exactly: each block's largest is 127, so its scale is 1.

    Each 16 elements hold a 127, for backends whose blocks are finer than the declared type's.
    """
    if row == 0:
        return numbers
    rows = numbers.reshape(-1, row)
    # Blocks of Q8_1 also hold the sum of their 32 numbers, in f16, which is exact up to 2048.
    limit = max(1, min(59 if kind is DType.Q8_1 else 127, int(room / 2)))
    rows[...] = np.clip(rows, -limit, limit)
    for start in range(0, row, 16):
        rows[:, start + int(rng.integers(min(16, row - start)))] = rng.choice([-127.0, 127.0])
    return rows.reshape(-1)


@dataclass(frozen=True)
class Integers:
    """Integers in [low, high), in any order, with repetitions."""

    low: int
    high: int

    def __call__(self, making: FillContext, operand: Operand) -> Array:
        size = int(np.prod(operand.shape, dtype=np.int64))
        numbers = making.rng.integers(self.low, max(self.low + 1, self.high), size)
        if size and making.variant == 0 and self.high - self.low > 1:
            numbers[making.rng.integers(size)] = self.high - 1  # a kernel may forget the last one
            if size > 1:
                numbers[making.rng.integers(size)] = self.low
        return numbers.astype(NUMPY[operand.dtype])


@dataclass(frozen=True)
class DistinctIds:
    """Ids that differ along dimension 0: repeated ids would make a write's result depend on its order."""

    high: int

    def __call__(self, making: FillContext, operand: Operand) -> Array:
        count = operand.shape[0] if operand.shape else 1
        rows = int(np.prod(operand.shape[1:], dtype=np.int64))
        drawn = [making.rng.permutation(self.high)[:count] for _ in range(rows)]
        return np.asarray(drawn).reshape(-1).astype(NUMPY[operand.dtype])


@dataclass(frozen=True)
class Bits:
    """Any stored elements, for ops that only move them: every NaN, subnormal and integer."""

    def __call__(self, making: FillContext, operand: Operand) -> Array:
        size = int(np.prod(operand.shape, dtype=np.int64))
        if operand.dtype.is_quantized:
            return blocks(making, operand.dtype, size // operand.dtype.block_size)
        kind = NUMPY[operand.dtype]
        if operand.dtype.is_integer:
            info = np.iinfo(kind)
            numbers = making.rng.integers(info.min, info.max, size, dtype=kind, endpoint=True)
            return np.asarray(numbers)
        return Numbers(special="0nisb")(making, operand)


@dataclass(frozen=True)
class ComputedNumbers:
    """Numbers that a function makes, rounded to the type."""

    function: Callable[[FillContext, Operand], Array]

    def __call__(self, making: FillContext, operand: Operand) -> Array:
        return encode(self.function(making, operand), operand.dtype)


# -- quantized blocks ------------------------------------------------------------------------------------

Q = DType
# Offsets of a block's f16 scales. All other bytes are random, so that every code comes up.
SCALES: dict[DType, tuple[int, ...]] = {
    Q.Q4_0: (0,),
    Q.Q8_0: (0,),
    Q.MXFP4: (),
    Q.Q4_K: (0, 2),
    Q.Q6_K: (208,),
    Q.Q5_0: (0,),
    Q.Q4_1: (0, 2),
    Q.Q5_K: (0, 2),
    Q.Q2_K: (80, 82),
    Q.Q3_K: (108,),
    Q.Q5_1: (0, 2),
    Q.IQ4_NL: (0,),
    Q.IQ4_XS: (0,),
    Q.IQ2_XXS: (0,),
    Q.IQ2_XS: (0,),
    Q.IQ3_XXS: (0,),
    Q.IQ3_S: (0,),
    Q.IQ2_S: (0,),
    Q.IQ1_S: (0,),
    Q.TQ1_0: (52,),
    Q.TQ2_0: (64,),
    Q.IQ1_M: (),  # in four parts, see `blocks`
    Q.NVFP4: (),
    Q.Q1_0: (0,),
}
READABLE = tuple(SCALES)
"""The quantized types that calls are drawn with."""
UNDRAWN = {
    Q.Q8_1: "ggml rounds activations to it and stores no weights so; its 36 bytes are 40 in GGUF's own table",
    Q.Q8_K: "ggml rounds activations to it and stores no weights so; nothing reads it from a file",
}
"""The quantized types that no call is drawn with, and why."""


def blocks(making: FillContext, dtype: DType, count: int) -> Array:
    """Blocks with random codes and finite scales of both signs; the scales are 1 or -1 in exact mode."""
    rng = making.rng
    raw = rng.integers(0, 256, (count, dtype.type_size), dtype=np.uint8)
    if dtype is DType.MXFP4:
        raw[:, 0] = 127 if making.exact else rng.integers(115, 131, count)
    if dtype is DType.NVFP4:  # four unsigned scales of 8 bits, of which 0x40 is 1 and 0x7F a NaN
        raw[:, :4] = 0x40 if making.exact else rng.integers(0, 0x7F, (count, 4))
    if dtype is DType.IQ1_M:  # the scale's four hexadecimal digits are the top bits of four words
        words = raw[:, 48:].view(np.uint16)
        digits = _scales(making, count)[:, None] >> np.array([0, 4, 8, 12], np.uint16)
        words[...] = (words & 0x0FFF) | (digits << 12).astype(np.uint16)
    for at in SCALES[dtype]:
        raw[:, at : at + 2] = _scales(making, count).view(np.uint8).reshape(count, 2)
    return raw


def _scales(making: FillContext, count: int) -> Array:
    """Scales as the bits of f16, of both signs: of magnitude 1 in exact mode, else some of them subnormal."""
    rng = making.rng
    scale = np.ones(count) if making.exact else np.exp(rng.uniform(-6, 0, count))
    if not making.exact:
        scale = np.where(rng.random(count) < 0.1, 2.0 ** -rng.integers(15, 24, count), scale)
    scale = np.where(rng.random(count) < 0.3, -scale, scale)
    return np.asarray(scale.astype(np.float16).view(np.uint16))
