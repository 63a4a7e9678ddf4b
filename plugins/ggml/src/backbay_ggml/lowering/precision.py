"""How exact ggml's CPU code is: the dtypes of activations and of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backbay import DType, Op, Precision, Spec, ops

from ..library.library import Library

Specs = Sequence[Spec | None]
COARSEST_FIRST = (DType.Q8_K, DType.Q8_1, DType.Q8_0, DType.BF16, DType.F16)


def precision(library: Library, op: Op[Any, Any], specs: Specs, *, flash: bool) -> Precision:
    """The dtypes that activations are rounded to, and that sums are kept in."""
    first = specs[0]
    if first is not None and op in (ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id):
        return _of_product(library, first.dtype, full=op is ops.mulmat_full_prec)
    if op in (ops.gelu, ops.quick_gelu):
        return Precision(DType.F16, DType.F32)  # from a table
    if first is not None and op is ops.scaled_dot_product_attention:
        return _of_attention(library, specs, flash=flash)
    return Precision(DType.F32, DType.F32)


def _of_product(library: Library, weight: DType, *, full: bool) -> Precision:
    if weight is DType.F16 and library.sums_in_half:
        return Precision(DType.F32, DType.F32) if full else Precision(DType.F16, DType.F16)
    return Precision(library.activation(weight), DType.F32)


def _of_attention(library: Library, specs: Specs, *, flash: bool) -> Precision:
    _query, key, value, _mask, _sinks, vmla = specs
    products = [spec for spec in (key, value, vmla) if spec is not None]
    used = {library.activation(spec.dtype) for spec in products}
    coarsest = next((dtype for dtype in COARSEST_FIRST if dtype in used), DType.F32)
    halves = [spec for spec in products if spec.dtype is DType.F16]
    sums_in_half = halves and (library.sums_in_half or (flash and value in halves))
    return Precision(coarsest, DType.F16 if sums_in_half else DType.F32)
