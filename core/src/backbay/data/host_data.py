"""Numbers that the host writes into a leaf: checked against its spec, converted to its dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError
from ..types.dtypes import DType
from ..types.spec import Spec
from .encoding import NUMPY, Array, Bytes, encode

_NONE = np.dtype(np.void)  # NumPy has no quantized types


def to_array(data: object, kind: Any) -> Array:
    """Convert a NumPy array, list or buffer of numbers to an array; raw bytes are numbers of `kind`."""
    if isinstance(data, (bytes, bytearray)):
        return np.frombuffer(data, kind)
    if isinstance(data, DType):  # NumPy would take it for a number
        raise DTypeError(
            f"expected numbers, got the dtype {data}; data come first, and a leaf of another dtype is made by "
            "ctx.empty(dtype, *shape).from_floats(data)"
        )
    if isinstance(data, Spec):
        raise DTypeError(f"expected numbers, got the tensor {data}; read it with numpy(), or copy it")
    try:
        array: Array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"not a regular array: {error}") from error
    if array.size == 0:
        return array.astype(kind)
    if array.dtype.kind not in "biuf":
        raise DTypeError(f"expected numbers, got an array of {array.dtype}")
    return array


def from_floats(data: object, spec: Spec) -> Bytes:
    """Encode numbers as the bytes of a leaf of `spec`."""
    array = to_array(data, np.float32)
    if spec.dtype.is_integer and not _whole(array):
        raise DTypeError(f"{spec} cannot hold fractions, infinities or NaN; cast a float leaf instead")
    return _encoded(array, spec)


def from_ints(data: object, spec: Spec) -> Bytes:
    array = to_array(data, np.int32)
    if array.dtype.kind == "f":
        raise DTypeError(f"expected integers, got an array of {array.dtype}; call from_floats")
    return _encoded(array, spec)


def from_buffer(data: object, spec: Spec) -> Bytes:
    """Take bytes as they are; ShapeError if they are not as many as `spec` has."""
    try:
        raw = np.frombuffer(memoryview(data), np.uint8)  # type: ignore[arg-type]  # TypeError says it is none
    except (TypeError, ValueError, BufferError) as error:
        raise DTypeError(f"expected bytes or a contiguous buffer: {error}") from error
    if raw.size != spec.nbytes:
        raise ShapeError(f"{raw.size} bytes do not fill the {spec.nbytes} of {spec}")
    return raw


def _whole(array: Array) -> bool:
    """Whether all numbers have integral values, in any dtype."""
    if array.dtype.kind != "f":
        return True
    return bool(np.isfinite(array).all() and np.array_equal(array, np.trunc(array)))


def _encoded(array: Array, spec: Spec) -> Bytes:
    """Check and convert numbers. A decoding step writes several small leaves, so the common case does neither."""
    if array.size != spec.size:
        raise ShapeError(f"{array.size} numbers do not fill the {spec.size} of {spec}")
    kind = NUMPY.get(spec.dtype, _NONE)
    if array.dtype == kind and kind.kind != "u":  # in NUMPY, bf16 is an unsigned integer
        raw = array
    elif spec.dtype.is_integer:
        _check_range(array, spec)
        raw = array.astype(kind)
    else:
        with np.errstate(all="ignore"):  # a float that is too large for the dtype becomes infinity
            raw = encode(np.ascontiguousarray(array).reshape(spec.shape[::-1]), spec.dtype)
    return np.ascontiguousarray(raw).reshape(-1).view(np.uint8)


def _check_range(array: Array, spec: Spec) -> None:
    if array.size == 0:
        return
    limit = 1 << (8 * spec.dtype.type_size - 1)
    low, high = int(np.minimum.reduce(array, axis=None)), int(np.maximum.reduce(array, axis=None))
    if low < -limit or high >= limit:
        raise ShapeError(f"{spec} cannot hold {low if low < -limit else high}")
