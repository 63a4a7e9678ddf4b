"""Faults planted without knowledge of the suite an eighth time: rare repeats, numbers and attributes."""

from __future__ import annotations

import numpy as np

from backbay import DType, Spec, ops

from ..faults import BoundCall, Kind, Result, fault, named
from ..fused import Array, rank4


@fault(Kind.WRONG_AXIS, ops.add, ops.mul)
def two_outer_dimensions_repeat_in_different_ways(call: BoundCall) -> Result:
    """Where several elements repeat in dimensions 2 and 3, those of dimension 3 repeat one after the other."""
    x, t2 = rank4(call.x), rank4(call.t2)
    if not all(1 < few < many for few, many in zip(t2.shape[:2], x.shape[:2], strict=True)):
        return call.right()
    return call.right(x=x, t2=np.repeat(t2, x.shape[0] // t2.shape[0], 0)).reshape(call.x.shape)


ATTRIBUTES = named(
    *("rms_norm", "layer_norm", "l2_norm", "scale", "clamp", "swiglu", "rope", "scaled_dot_product_attention")
)


def cut(raw: Array, right: Array, target: DType) -> Array:
    """What a conversion to bf16 or f16 gives, but infinities for the NaN whose kept bits are all 0."""
    lost = {DType.BF16: 16, DType.F16: 13}[target]
    bits = np.ascontiguousarray(raw).view(np.uint32).reshape(right.shape)
    empty = ((bits & 0x7FFFFFFF) > 0x7F800000) & ((bits & 0x7FFFFF) >> lost == 0)
    infinity = 0x7F80 if target is DType.BF16 else np.inf
    return np.where(empty, np.asarray(infinity, right.dtype), right)


def narrowed(source: Spec, target: Spec) -> bool:
    return source.dtype is DType.F32 and target.dtype in (DType.BF16, DType.F16)


@fault(Kind.SPECIAL, "data_to_write")
def a_nan_of_low_bits_is_written_as_an_infinity(call: BoundCall) -> Result:
    """A copy from f32 to a narrow type drops the low bits, and so the whole payload of some NaN."""
    right = call.right()
    return cut(call.raw, right, call.target.dtype) if narrowed(call.source, call.target) else right


@fault(Kind.SPECIAL, "run_node")
def a_nan_of_low_bits_is_cast_to_an_infinity(call: BoundCall) -> Result:
    """A cast from f32 to a narrow type drops the low bits, and so the whole payload of some NaN."""
    call.right()
    node = call.node
    if node.op is ops.cast and narrowed(node.args[0], node):
        y = call.arrays[node.index]
        y[...] = cut(call.arrays[node.args[0].index], y, node.dtype)


@fault(Kind.SPECIAL, ops.sum_rows, ops.mean, ops.cumsum)
def long_sums_saturate(call: BoundCall) -> Result:
    """In rows of more than 300 elements, an infinite sum is the largest number."""
    y = call.right()
    return np.where(np.isinf(y), np.copysign(3.4e38, y), y) if call.x.shape[-1:] > (300,) else y


@fault(Kind.ROPE, ops.rope)
def positions_are_rounded_to_f32_and_sums_to_f64(call: BoundCall) -> Result:
    """Positions beyond 2^24 are rounded, although the declared precision has room for them."""
    return call.right(positions=call.positions.astype(np.float32).astype(np.float64))


@fault(Kind.SCALARS, *ATTRIBUTES)
def attributes_are_kept_to_three_digits(call: BoundCall) -> Result:
    """A program is found again by the text of its attributes, which is short."""
    return call.right(**{name: float(f"{value:.3g}") for name, value in call.float_attributes().items()})
