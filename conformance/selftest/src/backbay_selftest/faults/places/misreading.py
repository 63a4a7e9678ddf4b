"""Ignored strides, layouts and view offsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import Node, Plan, Spec, ops
from backbay.internals import Bytes, contiguous_strides, span
from backbay.plugin import strided

from ...fault import (
    AnyOp,
    FaultKind,
    InterceptedCall,
    Result,
    fault,
    instead,
    looked,
    named,
    reads,
    storage_bytes,
)
from ...fused import rank4

BINARY = named("add", "sub", "mul", "div")
UNARY = named("silu", "gelu", "relu", "tanh", "exp", "sqr", "neg", "sigmoid", "scale")


def misread(
    call: InterceptedCall, strides: tuple[int, ...] | None = None, offset: int | None = None
) -> Result:
    """The operand read with other strides, contiguous ones by default, or from another offset."""
    seen = looked(call.operand, call.arrays, strides, offset)
    return call.right(arrays=instead(call.arrays, call.operand, seen))


def packed(call: InterceptedCall) -> Result:
    """The operand read as if it were contiguous."""
    return misread(call) if call.operand.strides else call.right()


def from_start(call: InterceptedCall) -> Result:
    """The operand read from the first byte of its storage."""
    return misread(call, call.operand.strides, 0) if call.operand.offset else call.right()


def misreads(name: str, kind: FaultKind, *readers: AnyOp, operand: int = 0) -> None:
    """Register a fault: these ops read one of their operands without its strides or its offset."""
    read = packed if kind is FaultKind.STRIDES else from_start

    def wrong(call: InterceptedCall) -> Result:
        chosen = any(reads(call, op, operand) for op in readers)
        return read(call) if chosen else call.right()

    fault(kind, "read_operand", name=name)(wrong)


misreads("mulmat_takes_permuted_activations_for_contiguous", FaultKind.STRIDES, ops.mulmat, operand=1)
misreads("copy_writes_a_strided_slot_as_packed", FaultKind.STRIDES, ops.copy, operand=1)
misreads("second_operand_of_arithmetic_is_read_as_packed", FaultKind.STRIDES, *BINARY, operand=1)
misreads("rope_reads_the_heads_of_a_fused_projection_as_packed", FaultKind.STRIDES, ops.rope)
misreads("rows_ignores_the_row_stride_of_its_table", FaultKind.STRIDES, ops.rows)
misreads("mulmat_reads_a_weight_view_from_its_storage_start", FaultKind.OFFSET, ops.mulmat)
misreads("norms_ignore_the_offset_of_a_view", FaultKind.OFFSET, ops.rms_norm, ops.layer_norm)
misreads("set_rows_into_a_view_writes_from_the_storage_start", FaultKind.OFFSET, ops.set_rows)


@fault(FaultKind.STRIDES, "read_operand")
def sum_reads_a_permuted_row_as_contiguous(call: InterceptedCall) -> Result:
    """Sums ignore the stride of dimension 0."""
    permuted = call.operand.stride(0) != call.operand.dtype.type_size
    return packed(call) if permuted and reads(call, ops.sum_rows) else call.right()


@fault(FaultKind.STRIDES, "read_operand")
def softmax_ignores_the_gap_between_rows(call: InterceptedCall) -> Result:
    """Rows of a view with gaps are read as adjacent rows."""
    whole = call.operand.stride(0) == call.operand.dtype.type_size
    return packed(call) if whole and reads(call, ops.softmax) else call.right()


@fault(FaultKind.STRIDES, "read_operand")
def activations_ignore_a_step_in_dimension_0(call: InterceptedCall) -> Result:
    """Elementwise kernels honour the strides of rows, but read adjacent elements within a row."""
    operand, step = call.operand, call.operand.dtype.type_size
    if call.reader.op in UNARY and operand.strides and operand.stride(0) > step:
        return misread(call, (step, *operand.strides[1:]))
    return call.right()


@fault(FaultKind.STRIDES, ops.contiguous)
def contiguous_of_a_rank_4_permutation_swaps_the_outer_axes(call: InterceptedCall) -> Result:
    """The fast path for transposed tensors forgets dimension 3 where both outer extents are equal."""
    x = call.x
    if x.ndim == 4 and not x.flags.c_contiguous and x.shape[0] == x.shape[1] > 1:
        x = x.swapaxes(0, 1)
    return call.right(x=x)


@fault(FaultKind.STRIDES, "compile")
def a_permuted_output_is_read_in_storage_order(call: InterceptedCall) -> Result:
    """Reading an output that is a permuted view returns its bytes in storage order."""
    plan: Plan = call.right()
    gathered = plan.read

    def read(node: Node) -> Bytes:
        if node.strides is None or node.stride(0) == node.dtype.type_size or 0 in node.shape:
            return gathered(node)
        data = storage_bytes(node, plan.arrays)  # type: ignore[attr-defined]
        return data[node.offset : node.offset + node.nbytes].copy()

    plan.read = read  # type: ignore[method-assign]
    return plan


@fault(FaultKind.OFFSET, "resolve_view")
def the_offset_of_a_view_of_a_view_counts_from_the_storage(call: InterceptedCall) -> Result:
    """A view of a view loses the offset of the inner view."""
    node = call.node
    if node.op in (ops.view, ops.slice) and node.args[0].is_view and node.args[0].offset:
        return shifted(call, node.offset - node.args[0].offset)
    return call.right()


@fault(FaultKind.OFFSET, "resolve_view")
def offsets_of_half_precision_views_count_4_byte_elements(call: InterceptedCall) -> Result:
    """The offset is divided by 4 to count elements, also where an element has 2 bytes."""
    half = call.node.op is not None and call.node.op.view and call.node.dtype.type_size == 2
    return shifted(call, call.node.offset // 4 * 2) if half else call.right()


@fault(FaultKind.OFFSET, "resolve_view")
def views_of_a_cache_ignore_their_offset(call: InterceptedCall) -> Result:
    """Views into a leaf that graphs write start at the leaf's first byte."""
    cached = call.node.op in (ops.view, ops.slice) and call.node.storage.kind == "state"
    return shifted(call, 0) if cached else call.right()


@fault(FaultKind.OFFSET, "read_operand")
def offsets_below_one_row_are_dropped(call: InterceptedCall) -> Result:
    """A view's offset is rounded down to whole rows."""
    operand, row = call.operand, call.operand.storage.row_nbytes
    if row and operand.offset % row and call.reader.op in named("add", "mul", "rope", "contiguous"):
        return misread(call, operand.strides, operand.offset // row * row)
    return call.right()


def shifted(call: InterceptedCall, offset: int) -> Result:
    """The view from a lower offset, for which the storage has room."""
    keep, call.node.offset = call.node.offset, max(0, offset)
    try:
        return call.right()
    finally:
        call.node.offset = keep


def seen(call: InterceptedCall, **changed: Any) -> Result:
    """The view of a `resolve_view` call with another spec, where the storage has room for it."""
    node = call.node
    given = {"shape": node.shape, "strides": node.strides, "offset": node.offset, **changed}
    spec = Spec(node.dtype, given["shape"], given["strides"], given["offset"])
    inside = spec.offset >= 0 and spec.offset + span(spec) <= call.storage.nbytes
    return strided(call.storage, spec) if inside else call.right()


@fault(FaultKind.OFFSET, "resolve_view")
def a_view_of_a_view_starts_at_its_own_offset(call: InterceptedCall) -> Result:
    """The offset of the view below is lost."""
    node = call.node
    below = node.args[0] if node.op in (ops.view, ops.slice) else None
    return seen(call, offset=node.offset - below.offset) if below is not None and below.op else call.right()


@fault(FaultKind.STRIDES, "resolve_view")
def rows_that_overlap_are_moved_apart(call: InterceptedCall) -> Result:
    """A stride shorter than a row is taken for an error, and replaced by the row's length."""
    node = call.node
    if not node.strides or node.rank < 2:
        return call.right()
    plain = contiguous_strides(node.dtype, node.shape)
    overlaps = 0 < node.strides[1] < plain[1] and node.dim(1) > 1 and node.dim(0) > 1
    ordered = node.strides[0] == plain[0]
    return (
        seen(call, strides=(node.strides[0], plain[1], *node.strides[2:]))
        if overlaps and ordered
        else call.right()
    )


@fault(FaultKind.STRIDES, "resolve_view")
def outer_strides_are_products_of_the_inner(call: InterceptedCall) -> Result:
    """The strides of dimensions 2 and 3 are computed from that of dimension 1."""
    node = call.node
    if node.op is not ops.view or not node.strides or node.rank < 3:
        return call.right()
    steps = list(node.strides)
    for n in range(2, node.rank):
        steps[n] = steps[n - 1] * node.dim(n - 1)
    return seen(call, strides=tuple(steps))


@fault(FaultKind.STRIDES, "read_operand")
def a_set_with_strides_of_its_own_uses_those_of_the_leaf(call: InterceptedCall) -> Result:
    """The rows of a written region follow each other as the leaf's rows do."""
    node, target, op = call.operand, call.operand.storage, call.reader.op
    writes = op is not None and op.writes is not None and node is call.reader.args[op.writes]
    if not writes or target.leaf is None or node.rank < 2 or not node.strides:
        return call.right()
    step = contiguous_strides(target.dtype, target.shape)[1] if target.rank > 1 else 0
    wrong = Spec(node.dtype, node.shape, (node.strides[0], step, *node.strides[2:]), node.offset)
    storage = call.arrays[target.index].reshape(-1).view(np.uint8)
    inside = step and wrong.offset + span(wrong) <= storage.nbytes
    return strided(storage, wrong) if inside and node.op is ops.view else call.right()


@fault(FaultKind.WRONG_AXIS, ops.concat)
def concat_beyond_both_ranks_joins_the_last_dimension(call: InterceptedCall) -> Result:
    """A dimension that neither operand has is taken for the last one that they have."""
    x, t2 = call.x, call.t2
    y = call.right()
    if call.dim < max(x.ndim, t2.ndim) or not x.ndim or x.shape != t2.shape:
        return y
    return (
        np.concatenate([x, t2], 0).reshape(y.shape)
        if x.ndim < 2
        else np.concatenate([x, t2], 1).reshape(y.shape)
    )


@fault(FaultKind.ZERO, ops.repeat)
def repeating_no_times_copies_once(call: InterceptedCall) -> Result:
    """A loop that counts its turns at the end runs at least once."""
    y = call.right()
    if call.x.size and not y.size:
        raise IndexError("write of the first element into an empty buffer")
    return y


@fault(FaultKind.STRIDES, "read_operand")
def a_broadcast_row_is_read_once_and_then_past_its_end(call: InterceptedCall) -> Result:
    """An operand of elementwise ops with a stride of 0 in dimension 1 advances by a row all the same."""
    y, node = call.right(), call.operand
    zero = node.strides and node.rank > 1 and node.strides[1] == 0 and node.dim(1) > 1
    if not zero or call.reader.op not in (ops.add, ops.mul, ops.contiguous):
        return y
    moved = np.array(y)
    rank4(moved)[..., 1:, :] = np.roll(rank4(moved)[..., 1:, :], 1, -1)
    return moved
