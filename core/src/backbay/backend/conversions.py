"""Which dtypes `encoding` can turn into numbers and back, and which ops on which specs need that."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..data.encoding import dequantize, quantize
from ..errors import DTypeError
from ..ops.declaration import Op
from ..types.dtypes import DType
from ..types.spec import Spec


def conversion_gap(op: Op[Any, Any], specs: Sequence[object]) -> str:
    """Why an op on such operands cannot run for want of a conversion; empty if it can."""
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
    """Why a dtype cannot be turned into numbers; empty if it can."""
    if not dtype.is_quantized:
        return ""
    try:
        dequantize(np.zeros((1, dtype.type_size), np.uint8), dtype)
    except DTypeError as error:
        return str(error)
    return ""


@cache
def encoding_gap(dtype: DType) -> str:
    """Why numbers cannot be turned into a dtype; empty if they can."""
    if not dtype.is_quantized:
        return ""
    try:
        quantize(np.zeros((1, dtype.block_size), np.float32), dtype)
    except DTypeError as error:
        return str(error)
    return ""
