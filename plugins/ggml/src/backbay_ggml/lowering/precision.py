"""How exact devices are: the dtypes of activations and of sums, known of ggml's CPU code, and measured of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from backbay import DType, Op, Precision, Spec, ops

from ..devices.device_verdict import DeviceVerdict, attention_name, experts_name, product_name
from ..devices.fault_cases import PRODUCT_NAN
from ..library.library import Library

Specs = Sequence[Spec | None]
EXACT = Precision(DType.F32, DType.F32)
UNMEASURED = Precision(DType.Q8_0, DType.F16)
"""Of products that a trial has not measured, as it did not come to its end: as coarse as any."""
PRODUCTS = (ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
BY_PRODUCTS = (ops.conv2d, ops.conv3d)
"""Ops that are lowered to products of f32."""
HALVES = (DType.F16, DType.BF16)
COARSEST_FIRST = (DType.Q8_K, DType.Q8_1, DType.Q8_0, DType.BF16, DType.F16)


def precision(library: Library, op: Op[Any, Any], specs: Specs, *, flash: bool) -> Precision:
    """The dtypes that activations are rounded to, and that sums are kept in."""
    first = specs[0]
    if first is not None and op in PRODUCTS:
        return _of_product(library, first.dtype, full=op is ops.mulmat_full_prec)
    if op in (ops.gelu, ops.quick_gelu):
        return Precision(DType.F16, DType.F32)  # from a table
    if first is not None and op is ops.scaled_dot_product_attention:
        return _of_attention(library, specs, flash=flash)
    return EXACT


def precision_of_device(verdict: DeviceVerdict, op: Op[Any, Any], specs: Specs, *, flash: bool) -> Precision:
    """The precision that the trial of a device has measured."""
    if op is ops.scaled_dot_product_attention:
        return _measured_attention(verdict, specs, flash=flash)
    first = specs[0]
    in_full = not verdict.takes(PRODUCT_NAN)  # then only products of experts may add in f16
    if first is not None and op is ops.mulmat_id:
        return _measured(verdict, first.dtype, experts_name)
    if first is not None and op in PRODUCTS:
        return _measured_product(verdict, first.dtype, full=in_full or op is ops.mulmat_full_prec)
    if op in BY_PRODUCTS:
        return _measured_product(verdict, DType.F32, full=in_full)
    return EXACT


def _measured_product(verdict: DeviceVerdict, weight: DType, *, full: bool) -> Precision:
    return _measured(verdict, weight, partial(product_name, full=full))


def _measured(verdict: DeviceVerdict, weight: DType, name: Callable[[DType], str]) -> Precision:
    """Quantized weights that were not measured count as the coarsest of those that were."""
    found = verdict.measured(name(weight))
    if found is None:
        others = (verdict.measured(name(dtype)) for dtype in DType if dtype.is_quantized)
        found = coarsest([each for each in others if each is not None] or [UNMEASURED])
    # What rounds columns to f16 or bf16 rounds weights, too, once their blocks are decoded.
    return replace(found, weight=found.activation) if found.activation in HALVES else found


def _measured_attention(verdict: DeviceVerdict, specs: Specs, *, flash: bool) -> Precision:
    _query, key, value, _mask, _sinks, vmla = specs
    in_full = not verdict.takes(PRODUCT_NAN)
    products = ((key, True), (value, in_full), (vmla, in_full))
    used = [_measured_product(verdict, spec.dtype, full=full) for spec, full in products if spec is not None]
    if flash:
        measured = (verdict.measured(attention_name(spec.dtype)) for spec in (key, value) if spec is not None)
        used += [each for each in measured if each is not None]
    return coarsest(used)


def coarsest(precisions: Sequence[Precision]) -> Precision:
    """The coarsest operands, sums and weights of several precisions."""
    activations, sums, weights = (
        [getattr(each, name) for each in precisions] for name in ("activation", "accumulate", "weight")
    )
    first, second, third = (
        next((dtype for dtype in COARSEST_FIRST if dtype in used), DType.F32)
        for used in (activations, sums, weights)
    )
    return Precision(first, second, weight=third)


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
