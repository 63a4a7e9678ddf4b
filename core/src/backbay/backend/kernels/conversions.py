"""Gaps of `decode` and `encode`: the dtypes that they cannot convert, and the ops that need these conversions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...data.encoding import dequantize, quantize
from ...errors import DTypeError
from ...ops.declaration import Op
from ...types.dtypes import DType
from ...types.spec import Spec


def conversion_gap(op: Op[Any, Any], specs: Sequence[object]) -> str:
    """The reason if an op on these operands needs a conversion that is missing; else empty."""
    if op.view or (op.moves and op.writes is None and op.ids is None):
        return ""  # the bits move as they are
    given = [spec for spec in specs if isinstance(spec, Spec)]
    if op.writes is None:
        return next(filter(None, (decoding_gap(spec.dtype) for spec in given)), "")
    target = given.pop(op.operands.index(op.writes))
    if given[0].dtype is target.dtype:
        return ""
    return decoding_gap(given[0].dtype) or encoding_gap(target.dtype)


@cache
def decoding_gap(dtype: DType) -> str:
    """The reason if a dtype cannot be converted to numbers; else empty."""
    if not dtype.is_quantized:
        return ""
    try:
        dequantize(np.zeros((1, dtype.type_size), np.uint8), dtype)
    except DTypeError as error:
        return str(error)
    return ""


@cache
def encoding_gap(dtype: DType) -> str:
    """The reason if numbers cannot be converted to a dtype; else empty."""
    if not dtype.is_quantized:
        return ""
    try:
        quantize(np.zeros((1, dtype.block_size), np.float32), dtype)
    except DTypeError as error:
        return str(error)
    return ""
