"""The operands that ggml's CPU code supports, in a list of our own, as ggml's answers are not always true; and precision.

The dtypes of activations and of sums are known of ggml's CPU code, and measured of other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from backbay import DType, Op, Precision, Spec, ops

from ..devices.device_trial import ATTENTION, PRODUCT, PRODUCT_IN_FULL, PRODUCT_OF_EXPERTS, DeviceVerdict
from ..devices.known_faults import PRODUCT_NAN
from ..library.abi import has_type
from ..library.library import Library

Specs = Sequence[Spec | None]
CAST_LIMIT = 1 << 32  # elements; ggml counts quantized elements in 32 bits when it converts them
EXACT = Precision(DType.F32, DType.F32)
UNMEASURED = Precision(DType.Q8_0, DType.F16)
"""Of products that a trial has not measured, as it did not come to its end: as coarse as any."""
PRODUCTS = (ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
BY_PRODUCTS = (ops.conv2d, ops.conv3d)
"""Ops that are lowered to products of f32."""
HALVES = (DType.F16, DType.BF16)
COARSEST_FIRST = (DType.Q8_K, DType.Q8_1, DType.Q8_0, DType.BF16, DType.F16)


def why_unsupported(library: Library, op: Op[Any, Any], specs: Specs) -> str:
    """Why an op does not run on some operands; an empty text if it does."""
    given = [spec for spec in specs if spec is not None]
    for spec in given:
        if not has_type(library.lib, spec.dtype):
            return f"ggml {library.version} does not know {spec.dtype}"
    if op in PRODUCTS:
        return _why_not_multiplied(library, given[0])
    if op is ops.rows:
        return _why_not_read(library, given[0])
    if op is ops.cast:
        return _why_not_cast(library, given[0])
    if op is ops.copy and given[0].dtype is not given[1].dtype:
        return _why_not_cast(library, given[0]) or _why_not_made(library, given[1])
    if op is ops.set_rows:
        return _why_not_set(library, given[0], given[1])
    if op is ops.scaled_dot_product_attention:
        return _why_not_attended(library, specs)
    return ""


def has_long_heads(specs: Specs) -> bool:
    """Whether a delta rule of RWKV has heads of more than 64 elements, for which GPUs compute nonsense or abort."""
    s, removed = specs[0], specs[6] if len(specs) > 6 else None
    assert s is not None
    return removed is not None and max(s.dim(0), s.dim(1)) > 64


def _why_not_cast(library: Library, x: Spec) -> str:
    if x.dtype.is_quantized and x.size >= CAST_LIMIT:
        return f"ggml converts fewer than {CAST_LIMIT} quantized elements at a time"
    return _why_not_read(library, x)


def _why_not_set(library: Library, x: Spec, src: Spec) -> str:
    if x.dim(0) > x.dtype.block_size and x.stride(0) != x.dtype.type_size:
        return "the elements of each row of the destination must adjoin"
    if x.dtype.is_quantized and src.dtype is x.dtype:
        return f"rows of {x.dtype} cannot be copied unchanged; cast them first"
    return _why_not_read(library, src) or _why_not_made(library, x)


def _why_not_attended(library: Library, specs: Specs) -> str:
    _query, key, value, _mask, _sinks, vmla = specs
    assert value is not None
    for spec in (key, vmla):
        if spec is not None and (why := _why_not_multiplied(library, spec)):
            return why
    return _why_not_read(library, value) or _why_not_multiplied(library, value)


def _why_not_multiplied(library: Library, weight: Spec) -> str:
    return "" if library.can_multiply(weight.dtype) else f"ggml does not multiply {weight.dtype}"


def _why_not_read(library: Library, x: Spec) -> str:
    readable = not x.dtype.is_quantized or library.can_dequantize(x.dtype)
    return "" if readable else f"ggml does not read {x.dtype}"


def _why_not_made(library: Library, x: Spec) -> str:
    readable = not x.dtype.is_quantized or library.can_quantize(x.dtype)
    return "" if readable else f"ggml does not make {x.dtype}"


# -- precision -------------------------------------------------------------------------------------------


def op_precision(library: Library, op: Op[Any, Any], specs: Specs, *, flash: bool) -> Precision:
    """The dtypes that activations are rounded to, and that sums are kept in."""
    first = specs[0]
    if first is not None and op in PRODUCTS:
        if first.dtype is not DType.F16 or not library.sums_in_half:
            return Precision(library.activation(first.dtype), DType.F32)
        return EXACT if op is ops.mulmat_full_prec else Precision(DType.F16, DType.F16)
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
        return _measured(verdict, first.dtype, PRODUCT_OF_EXPERTS)
    if first is not None and op in PRODUCTS:
        return _measured_product(verdict, first.dtype, full=in_full or op is ops.mulmat_full_prec)
    if op in BY_PRODUCTS:
        return _measured_product(verdict, DType.F32, full=in_full)
    return EXACT


def _measured_product(verdict: DeviceVerdict, weight: DType, *, full: bool) -> Precision:
    return _measured(verdict, weight, PRODUCT_IN_FULL if full else PRODUCT)


def _measured(verdict: DeviceVerdict, weight: DType, name: str) -> Precision:
    """Quantized weights that were not measured count as the coarsest of those that were."""
    found = verdict.measured(name, weight)
    if found is None:
        others = (verdict.measured(name, dtype) for dtype in DType if dtype.is_quantized)
        found = coarsest_precision([each for each in others if each is not None] or [UNMEASURED])
    # What rounds columns to f16 or bf16 rounds weights, too, once their blocks are decoded.
    return replace(found, weight=found.activation) if found.activation in HALVES else found


def _measured_attention(verdict: DeviceVerdict, specs: Specs, *, flash: bool) -> Precision:
    _query, key, value, _mask, _sinks, vmla = specs
    in_full = not verdict.takes(PRODUCT_NAN)
    products = ((key, True), (value, in_full), (vmla, in_full))
    used = [_measured_product(verdict, spec.dtype, full=full) for spec, full in products if spec is not None]
    if flash:
        measured = (verdict.measured(ATTENTION, spec.dtype) for spec in (key, value) if spec is not None)
        used += [each for each in measured if each is not None]
    return coarsest_precision(used)


def coarsest_precision(precisions: Sequence[Precision]) -> Precision:
    """The coarsest operands, sums and weights of several precisions."""
    return Precision(
        _coarsest([each.activation for each in precisions]),
        _coarsest([each.accumulate for each in precisions]),
        weight=_coarsest([each.weight for each in precisions]),
    )


def _coarsest(dtypes: Sequence[DType]) -> DType:
    return next((dtype for dtype in COARSEST_FIRST if dtype in dtypes), DType.F32)


def _of_attention(library: Library, specs: Specs, *, flash: bool) -> Precision:
    _query, key, value, _mask, _sinks, vmla = specs
    products = [spec for spec in (key, value, vmla) if spec is not None]
    halves = [spec for spec in products if spec.dtype is DType.F16]
    sums_in_half = halves and (library.sums_in_half or (flash and value in halves))
    operands = _coarsest([library.activation(spec.dtype) for spec in products])
    return Precision(operands, DType.F16 if sums_in_half else DType.F32)
