"""Results of products, compared with a formula in float64."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, DType, Spec, Tensor
from backbay.ops import mulmat
from backbay_conformance.plugin import Fault

from ..cache.contract import ROUNDOFFS

Array: TypeAlias = NDArray[Any]


def roundoff(backend: Backend, *dtypes: DType) -> float:
    """The coarsest roundoff of a product in f32, or of other types, such as the cache's."""
    declared = backend.precision(mulmat, [Spec(DType.F32, (8, 8)), Spec(DType.F32, (8, 8))])
    kinds = (DType.F32, declared.activation, declared.accumulate, declared.weight, *dtypes)
    return max(ROUNDOFFS.get(dtype, 0.0) for dtype in kinds)


def leaf_of(ctx: Context, array: Array) -> Tensor:
    """An input with the array's numbers in f32; its shape is the array's, reversed."""
    return ctx.input().from_floats(np.ascontiguousarray(array, np.float32), *array.shape[::-1])


def require_near(found: Array, expected: Array, unit: float, check: str) -> None:
    """Raise Fault unless each element is within `unit`, relative to the largest expected element or to 1."""
    bound = unit * max(1.0, float(np.abs(expected).max()))
    off = np.abs(found - expected)
    if not (off <= bound).all():
        at = tuple(map(int, np.unravel_index(np.nan_to_num(off, nan=np.inf).argmax(), off.shape)))
        raise Fault(
            check, f"at {at[::-1]} expected {expected[at]:.7g} within {bound:.3g}, got {found[at]:.7g}"
        )
