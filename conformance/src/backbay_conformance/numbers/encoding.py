"""Encoding and decoding of stored elements, independent of core's, so that core is tested too."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import DType

from .rounding import Array, round_to, to_bfloat16

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
    """Numbers as stored elements, rounded to nearest."""
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


def stored_shape(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a tensor's array: reversed; a quantized row is held as bytes."""
    if dtype.is_quantized:
        shape = (dtype.row_size(shape[0]), *shape[1:])
    return shape[::-1]


def from_bytes(data: bytes, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Bytes in logical order as stored elements."""
    return np.frombuffer(data, NUMPY.get(dtype, np.dtype(np.uint8))).reshape(stored_shape(dtype, shape))
