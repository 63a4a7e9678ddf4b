"""The memory that a kernel over arrays works in, beside its operands and its result as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...data.encoding import NUMPY, Array, decode
from ...graph.graph import Node
from ...types.dtypes import DType
from .scratch import aligned

CHUNK = 1 << 18  # elements that are decoded at a time


def converted_nbytes(node: Node, float_dtype: type[np.floating[Any]]) -> int:
    """The bytes of a kernel's operands, as far as they are converted for it."""
    assert node.op is not None
    if node.op.moves:
        return 0
    floats = [operand for operand in node.operands if not operand.dtype.is_integer]
    converted = [operand for operand in floats if NUMPY.get(operand.dtype) != np.dtype(float_dtype)]
    return sum(aligned(operand.size * np.dtype(float_dtype).itemsize) for operand in converted)


def numbers_shape(raw: Array, dtype: DType) -> tuple[int, ...]:
    """The shape of a stored array's numbers."""
    if not dtype.is_quantized:
        return raw.shape
    return (*raw.shape[:-1], raw.shape[-1] // dtype.type_size * dtype.block_size)


def convert(raw: Array, dtype: DType, into: Array) -> Array:
    """Fill `into` with the numbers of a stored array; rows are decoded some at a time."""
    if dtype in NUMPY and dtype is not DType.BF16:
        np.copyto(into, raw)
    elif into.size:
        rows, filled = raw.reshape(-1, raw.shape[-1]), into.reshape(-1, into.shape[-1])
        step = max(1, CHUNK // into.shape[-1])
        for low in range(0, len(rows), step):
            filled[low : low + step] = decode(rows[low : low + step], dtype)
    return into


def kernel_nbytes(node: Node, float_dtype: type[np.floating[Any]]) -> int:
    """The bytes of a kernel's result before it is stored, and of data that are converted for a write."""
    assert node.op is not None
    if node.op.writes is not None:
        target = node.args[node.op.writes]
        sources = [operand for operand in node.operands if operand is not target]
        return sum(4 * source.size for source in sources if source.dtype is not target.dtype)
    if node.op.moves:
        return node.nbytes
    return node.size * np.dtype(float_dtype).itemsize
