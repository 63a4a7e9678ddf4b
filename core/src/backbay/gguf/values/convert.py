"""Conversion of metadata values to the types that callers ask for; None for a value of another type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..header.strings import Strings


def as_string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def as_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_float(value: object) -> float | None:
    if isinstance(value, float):
        return value
    number = as_int(value)
    return None if number is None else float(number)


def as_bool(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def as_strings(value: object) -> Sequence[str] | None:
    if isinstance(value, Strings):
        return value
    if _is_empty(value):
        return ()
    if isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        return tuple(value)
    return None


def as_ints(value: object) -> npt.NDArray[np.int64] | None:
    array = _as_array(value, "iu")
    if array is None or (array.dtype.kind == "u" and array.max(initial=0) > np.iinfo(np.int64).max):
        return None
    return np.array(array, np.int64)


def as_floats(value: object) -> npt.NDArray[np.float64] | None:
    array = _as_array(value, "fiu")
    if array is None:
        return None
    with np.errstate(invalid="ignore"):  # a signalling NaN in a file must not cause a warning
        return np.array(array, np.float64)


def as_bools(value: object) -> npt.NDArray[np.bool_] | None:
    array = _as_array(value, "b")
    return None if array is None else np.array(array, np.bool_)


def describe(value: object) -> str:
    """A value in words, short enough for a message."""
    if isinstance(value, str):
        return f"the string {value[:60]!r}{'...' if len(value) > 60 else ''}"
    if isinstance(value, Strings):
        return f"an array of {len(value)} strings"
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype.name} numbers"
    return f"the {type(value).__name__} {value!r}"[:80]


def _as_array(value: object, kinds: str) -> npt.NDArray[Any] | None:
    if _is_empty(value):
        return np.empty(0)  # an empty array matches every type
    array: npt.NDArray[Any]
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, list | tuple):
        array = np.asarray(value)
    else:
        return None
    return array if array.dtype.kind in kinds and array.ndim == 1 else None


def _is_empty(value: object) -> bool:
    return isinstance(value, list | tuple | Strings | np.ndarray) and len(value) == 0
