"""Rounding to a dtype, and stored elements: encoded and decoded independent of core's code, so that core is tested, too."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbay import DType

Array = NDArray[Any]

SIGNIFICAND = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}
"""Bits of the significand, including the hidden bit: integers below 2**bits are exact."""
LARGEST = {DType.F64: 1.7976931348623157e308, DType.F32: 3.4028234663852886e38, DType.F16: 65504.0}
LARGEST[DType.BF16] = 3.3895313892515355e38
# Results this close to zero may be flushed to zero, or rounded to the coarse grid of subnormals.
FLOOR = {DType.F64: 2.3e-308, DType.F32: 1.2e-38, DType.F16: 2.0**-24, DType.BF16: 1.2e-38}
# The largest error of quantizing, relative to the largest magnitude of the block: half a step (a whole step if the
# far end is clipped), and the rounding of the scale to f16.
BLOCK_STEP = {
    DType.Q8_0: 0.5 / 127 + 2.0**-10,
    DType.Q8_1: 0.5 / 127 + 2.0**-10,
    DType.Q8_K: 0.75 / 127 + 2.0**-20,
    DType.Q5_0: 1 / 16 + 2.0**-9,
    DType.Q5_1: 1 / 31 + 2.0**-9,
    DType.Q4_0: 1 / 8 + 2.0**-9,
    DType.Q4_1: 1 / 15 + 2.0**-9,
    DType.MXFP4: 1 / 4 + 2.0**-9,
    DType.IQ4_NL: 1 / 6,
}

NARROW = 2.0**-16  # between the unit roundoff of f32 and those of f16 and bf16
CLIPPED = {DType.Q5_0: 15 / 16, DType.Q4_0: 7 / 8}
"""The share of a block's largest magnitude beyond which codes of the other sign are clipped."""


def unit(dtype: DType) -> float:
    """The largest relative error of rounding to nearest in a float type."""
    return float(2.0 ** -SIGNIFICAND.get(dtype, 24))


def last_place(numbers: Array, dtype: DType) -> Array:
    """The distance of each number's neighbours in a float type; infinite below its normal range, and for other types."""
    _, exponents = np.frexp(numbers)
    normal = (dtype in SIGNIFICAND) & (np.abs(numbers) >= 2.0 ** (-14 if dtype is DType.F16 else -126))
    return np.where(normal, np.ldexp(1.0, exponents - SIGNIFICAND.get(dtype, 0)), np.inf)


def significand(dtype: DType) -> int:
    """The most bits of an integer that is exact in a type; a block of 8-bit numbers counts as 8 bits."""
    return SIGNIFICAND.get(dtype, 31 if dtype.is_integer else 8)


def to_bfloat16(numbers: Array) -> NDArray[np.uint16]:
    """float32 values as the bits of the nearest bf16, ties to even."""
    bits = np.asarray(numbers, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def round_to(numbers: Array, dtype: DType) -> Array:
    """Numbers rounded to a float type, as float64."""
    with np.errstate(all="ignore"):
        if dtype is DType.F16:
            return np.asarray(numbers).astype(np.float16).astype(np.float64)
        if dtype is DType.BF16:
            bits = to_bfloat16(np.asarray(numbers).astype(np.float32)).astype(np.uint32) << 16
            return bits.view(np.float32).astype(np.float64)
        return np.asarray(numbers).astype(np.float32).astype(np.float64)


NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(np.uint16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
}


def decode(raw: Array, dtype: DType) -> Array:
    """Floats as float64, integers as they are."""
    if dtype.is_quantized:
        return dequantized(raw, dtype)
    if dtype is DType.BF16:
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype.is_integer:
        return raw
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        return raw.astype(np.float64)


def encode(numbers: Array, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        if dtype is DType.BF16:
            return to_bfloat16(round_to(numbers, DType.F32).astype(np.float32))
        return np.asarray(numbers).astype(NUMPY[dtype])


def opposite(raw: Array, dtype: DType) -> Array:
    """The negatives of stored floats or integers, zeros too: only the sign of a float changes."""
    return np.asarray(raw ^ 0x8000 if dtype is DType.BF16 else -raw)


def dequantized(raw: Array, dtype: DType) -> Array:
    from gguf import GGMLQuantizationType, quants

    shape = (*raw.shape[:-1], raw.shape[-1] // dtype.type_size * dtype.block_size)
    if raw.size == 0:
        return np.zeros(shape)
    if dtype is DType.Q1_0:
        return one_bit(raw).reshape(shape)
    row = np.ascontiguousarray(raw).reshape(1, -1)  # gguf converts few rows at a time, however short they are
    numbers = quants.dequantize(row, GGMLQuantizationType(dtype.value))
    return numbers.reshape(shape).astype(np.float64)


def one_bit(raw: Array) -> Array:
    """Decode Q1_0, which gguf does not: an f16 scale, then a bit for each of 128 elements, 1 for plus."""
    blocks = np.ascontiguousarray(raw).reshape(-1, DType.Q1_0.type_size)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float64)
    plus = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return np.asarray(np.where(plus, scale, -scale))


def stored_slice(dtype: DType, dim: int, low: int, high: int, step: int = 1) -> slice:
    """The elements from `low` to `high` of a dimension, as they are stored: a quantized row is held as bytes."""
    if dim == 0 and dtype.is_quantized:
        low, high = dtype.row_size(low), dtype.row_size(high)
    return slice(low, high, step)


def stored_shape(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a tensor's array: reversed; a quantized row is held as bytes."""
    if dtype.is_quantized:
        shape = (dtype.row_size(shape[0]), *shape[1:])
    return shape[::-1]


def from_bytes(data: bytes, dtype: DType, shape: tuple[int, ...]) -> Array:
    return np.frombuffer(data, NUMPY.get(dtype, np.dtype(np.uint8))).reshape(stored_shape(dtype, shape))
