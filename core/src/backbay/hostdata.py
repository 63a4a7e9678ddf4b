"""Numbers of the host on their way into a leaf: checked against its spec, converted to its dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dtypes import DType
from .encoding import Array, Bytes, encode
from .errors import DTypeError, ShapeError
from .spec import Spec


def to_array(data: object, kind: Any) -> Array:
    """A NumPy array, list or buffer of numbers as an array; raw bytes are read as numbers of `kind`."""
    if isinstance(data, (bytes, bytearray)):
        return np.frombuffer(data, kind)
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
    """The bytes of `spec` that hold these numbers."""
    array = to_array(data, np.float32)
    whole = array.dtype.kind != "f" or (np.isfinite(array).all() and np.array_equal(array, np.trunc(array)))
    if spec.dtype.is_integer and not whole:
        raise DTypeError(f"{spec} cannot hold fractions, infinities or NaN; cast a float leaf instead")
    return _encoded(array, spec)


def from_ints(data: object, spec: Spec) -> Bytes:
    """The bytes of `spec` that hold these integers."""
    array = to_array(data, np.int32)
    if array.dtype.kind == "f":
        raise DTypeError(f"expected integers, got an array of {array.dtype}; call from_floats")
    return _encoded(array, spec)


def from_buffer(data: object, spec: Spec) -> Bytes:
    """The bytes themselves, if they are as many as `spec` takes."""
    try:
        raw = np.frombuffer(memoryview(data), np.uint8)  # type: ignore[arg-type]  # TypeError says it is none
    except (TypeError, ValueError, BufferError) as error:
        raise DTypeError(f"expected bytes or a contiguous buffer: {error}") from error
    if raw.size != spec.nbytes:
        raise ShapeError(f"{raw.size} bytes do not fill the {spec.nbytes} of {spec}")
    return raw


def _encoded(array: Array, spec: Spec) -> Bytes:
    if array.size != spec.size:
        raise ShapeError(f"{array.size} numbers do not fill the {spec.size} of {spec}")
    if spec.dtype.is_integer and array.size:
        _check_range(array, spec)
    numbers = np.ascontiguousarray(array).reshape(spec.shape[::-1])
    with np.errstate(all="ignore"):  # a float too large for its dtype is an infinity
        return np.ascontiguousarray(encode(numbers, spec.dtype)).reshape(-1).view(np.uint8)


def _check_range(array: Array, spec: Spec) -> None:
    info = np.iinfo(np.int32 if spec.dtype is DType.I32 else np.int64)
    low, high = int(array.min()), int(array.max())
    if low < info.min or high > info.max:
        raise ShapeError(f"{spec} cannot hold {low if low < info.min else high}")
