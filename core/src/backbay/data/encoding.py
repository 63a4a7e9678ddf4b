"""The bytes of tensors: their conversion to numbers and back, for every dtype of the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DTypeError, reason_of
from ..types.dtype import DType
from ..types.spec import Spec

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.I8: np.dtype(np.int8),
    DType.I16: np.dtype(np.int16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.F64: np.dtype(np.float64),
    DType.BF16: np.dtype(np.uint16),  # raw bits: NumPy has no bfloat16
}

PIECE = 1 << 16
"""Elements that are quantized or dequantized at a time: gguf converts few rows at a time, however short they are."""


def numpy_view(data: Bytes, dtype: DType) -> Array:
    """Bytes as a flat array of NumPy's type for the dtype; quantized types stay bytes."""
    return data.view(NUMPY[dtype]) if dtype in NUMPY else data


def strided(data: Bytes, spec: Spec) -> Array:
    """A view as an array of the reversed shape, without a copy; a quantized row is an array of its bytes."""
    shape, strides = list(spec.shape), [spec.stride(n) for n in range(spec.rank)]
    element = NUMPY.get(spec.dtype)
    if element is None:
        element, shape[0], strides[0] = np.dtype(np.uint8), spec.row_nbytes, 1
    if 0 in shape:  # an empty view may lie behind the end of its storage, and NumPy refuses such offsets
        return np.empty(shape[::-1], element)
    return np.ndarray(shape[::-1], element, data.data, spec.offset, strides[::-1])


def gather(data: Bytes, spec: Spec) -> Bytes:
    """The bytes of a view, contiguous, in logical order."""
    if spec.strides is None:
        return data[spec.offset : spec.offset + spec.nbytes]
    return np.ascontiguousarray(strided(data, spec)).reshape(-1).view(np.uint8)


def decode(raw: Array, dtype: DType) -> Array:
    """A raw array (see `strided`) as numbers: BF16 and quantized types as float32, other dtypes unchanged."""
    if dtype is DType.BF16:
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype.is_quantized:
        return dequantize(raw, dtype)
    return raw


def flat_numbers(data: Bytes, dtype: DType) -> Array:
    """All elements of contiguous bytes, decoded."""
    if dtype is DType.F32:  # results, nearly always: a step reads them in little time
        return data.view(np.float32)
    return decode(data.reshape(-1, dtype.type_size) if dtype.is_quantized else numpy_view(data, dtype), dtype)


def dequantize(raw: Array, dtype: DType) -> Array:
    shape = (*raw.shape[:-1], raw.shape[-1] // dtype.type_size * dtype.block_size)
    blocks = np.ascontiguousarray(raw).reshape(-1, dtype.type_size)
    numbers = np.empty((len(blocks), dtype.block_size), np.float32)
    _convert("dequantize", dtype, blocks, numbers, f"{dtype} cannot be converted to numbers")
    return numbers.reshape(shape)


def encode(numbers: Array, dtype: DType) -> Array:
    """Numbers as a raw array of the dtype, rounded to nearest: the inverse of `decode`."""
    if dtype is DType.BF16:
        return _to_bfloat16(numbers)
    if dtype.is_quantized:
        return quantize(numbers, dtype)
    return numbers.astype(NUMPY[dtype], copy=False)


def quantize(numbers: Array, dtype: DType) -> Array:
    shape = (*numbers.shape[:-1], dtype.row_size(numbers.shape[-1]))
    blocks = np.ascontiguousarray(numbers, np.float32).reshape(-1, dtype.block_size)
    raw = np.empty((len(blocks), dtype.type_size), np.uint8)
    _convert("quantize", dtype, blocks, raw, f"numbers cannot be converted to {dtype}")
    return raw.reshape(shape)


def _convert(name: str, dtype: DType, blocks: Array, result: Array, failure: str) -> None:
    """Fill the rows of `result` with what a function of gguf makes of the blocks, some blocks at a time."""
    from gguf import GGMLQuantizationType, quants  # gguf takes longer to import than most of core

    kind, most = GGMLQuantizationType(dtype.value), PIECE // dtype.block_size
    try:
        for low in range(0, len(blocks), most):
            row = blocks[low : low + most].reshape(1, -1)
            result[low : low + most] = getattr(quants, name)(row, kind).reshape(-1, result.shape[1])
    except NotImplementedError as error:
        raise DTypeError(f"{failure}: {reason_of(error)}") from error


def _to_bfloat16(numbers: Array) -> Array:
    """Round once, to nearest, ties to even; NaN stays NaN."""
    single = numbers.astype(np.float32)
    bits = single.view(np.uint32)
    # Rounding to float32 can make a number look like a tie: step back to the side on which the number lies.
    lost = np.sign(single) * (numbers - single)
    tie = (bits & 0xFFFF) == 0x8000
    bits = bits + (tie & (lost > 0)) - (tie & (lost < 0)).astype(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet_nan = (bits >> 16) | 0x40
    return np.where(np.isnan(single), quiet_nan, rounded).astype(np.uint16)
