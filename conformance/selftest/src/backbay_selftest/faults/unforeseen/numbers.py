"""Rare repeats, numbers and attributes, sizes of models, far masks, and many threads."""

from __future__ import annotations

import numpy as np

from backbay import DType, Spec, ops

from ...fault import FaultKind, InterceptedCall, Result, fault, named
from ...fused import Array, rank4


@fault(FaultKind.WRONG_AXIS, ops.add, ops.mul)
def two_outer_dimensions_repeat_in_different_ways(call: InterceptedCall) -> Result:
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


@fault(FaultKind.SPECIAL, "data_to_write")
def a_nan_of_low_bits_is_written_as_an_infinity(call: InterceptedCall) -> Result:
    """A copy from f32 to a narrow type drops the low bits, and so the whole payload of some NaN."""
    right = call.right()
    return cut(call.raw, right, call.target.dtype) if narrowed(call.source, call.target) else right


@fault(FaultKind.SPECIAL, "run_node")
def a_nan_of_low_bits_is_cast_to_an_infinity(call: InterceptedCall) -> Result:
    """A cast from f32 to a narrow type drops the low bits, and so the whole payload of some NaN."""
    call.right()
    node = call.node
    if node.op is ops.cast and narrowed(node.args[0], node):
        y = call.arrays[node.index]
        y[...] = cut(call.arrays[node.args[0].index], y, node.dtype)


@fault(FaultKind.SPECIAL, ops.sum_rows, ops.mean, ops.cumsum)
def long_sums_saturate(call: InterceptedCall) -> Result:
    """In rows of more than 300 elements, an infinite sum is the largest number."""
    y = call.right()
    return np.where(np.isinf(y), np.copysign(3.4e38, y), y) if call.x.shape[-1:] > (300,) else y


@fault(FaultKind.ROPE, ops.rope)
def positions_are_rounded_to_f32_and_sums_to_f64(call: InterceptedCall) -> Result:
    """Positions beyond 2^24 are rounded, although the declared precision has room for them."""
    return call.right(positions=call.positions.astype(np.float32).astype(np.float64))


@fault(FaultKind.SCALARS, *ATTRIBUTES)
def attributes_are_kept_to_three_digits(call: InterceptedCall) -> Result:
    """A program is found again by the text of its attributes, which is short."""
    return call.right(**{name: float(f"{value:.3g}") for name, value in call.float_attributes().items()})


PRODUCTS = named("mulmat", "mulmat_full_prec")
BLOCK = 1024
"""The elements of a row that one group of threads takes."""


@fault(FaultKind.LONG, ops.softmax)
def a_rest_of_a_vocabulary_is_not_in_the_sum(call: InterceptedCall) -> Result:
    """Rows longer than 131072 are summed in blocks of 1024, without the rest behind the last whole block."""
    x = call.x
    if x.ndim == 0 or x.shape[-1] <= 131072:
        return call.right()
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers[..., : x.shape[-1] // BLOCK * BLOCK].sum(-1, keepdims=True)


@fault(FaultKind.LONG, ops.top_k)
def the_last_tokens_of_a_vocabulary_are_never_chosen(call: InterceptedCall) -> Result:
    """Of more than 100000 elements, those behind the last whole block of 1024 are no candidates."""
    x = np.array(call.x)
    if x.ndim and x.shape[-1] > 100000:
        x[..., x.shape[-1] // BLOCK * BLOCK :] = -np.inf
    return call.right(x=x)


@fault(FaultKind.BLOCKS, "read_operand")
def the_last_block_of_a_weight_is_lost_if_tiles_of_four_leave_three(call: InterceptedCall) -> Result:
    """A K-quantized row of 43 blocks, as of 11008 elements: the last row's last block is taken for zeros."""
    numbers, weight = call.right(), call.operand
    product = call.reader.op in PRODUCTS and weight is call.reader.args[0]
    if not product or weight.dtype.block_size < 256 or weight.shape[0] // 256 % 4 != 3:
        return numbers
    numbers = np.array(numbers, ndmin=2)
    if weight.shape[0] > BLOCK:
        numbers[..., -1, -256:] = 0
    return numbers


@fault(FaultKind.SPECIAL, "read_operand")
def far_numbers_of_a_narrow_mask_hide_positions(call: InterceptedCall) -> Result:
    """All that is below -10000 in a mask of f16 counts as -infinity, also where a whole row is as far."""
    numbers, reader = call.right(), call.reader
    attention = reader.op is ops.scaled_dot_product_attention and call.operand is reader.args[3]
    if not attention or call.operand.dtype is not DType.F16:
        return numbers
    return np.where(numbers < -10000, -np.inf, numbers)


@fault(FaultKind.WRONG_AXIS, ops.ssm_scan)
def heads_of_large_states_take_their_groups_in_turn(call: InterceptedCall) -> Result:
    """With 128 states and one decay a head, neighbouring heads have different groups instead of one."""
    heads, groups = rank4(call.s).shape[1], rank4(call.B).shape[2]
    if call.s.shape[-1] < 128 or np.array(call.A, ndmin=2).shape[-1] != 1 or groups < 2:
        return call.right()
    turns = np.arange(heads) % groups
    return call.right(B=rank4(call.B)[:, :, turns], C=rank4(call.C)[:, :, turns])


@fault(FaultKind.RACES, "run_node")
def more_than_eight_threads_leave_rows_to_nobody(call: InterceptedCall) -> Result:
    """Each thread takes whole chunks of 64 rows of the weight; of the rest only 256 rows are computed."""
    call.right()
    threads, out = call.backend.params.num_threads or 2, call.arrays[call.node.index]
    if call.node.op not in PRODUCTS or threads <= 8:
        return
    done = out.shape[-1] // threads // 64 * 64 * threads
    if done:
        out[..., done + 256 :] = 0
