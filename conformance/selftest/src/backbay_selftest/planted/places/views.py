"""Views of views, strides of any size, and writes into parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import Spec, ops
from backbay.internals import contiguous_strides, span
from backbay.plugin import strided

from ...faults import BoundCall, Kind, Result, fault
from ...fused import rank4


def seen(call: BoundCall, **changed: Any) -> Result:
    """The view of a `resolve_view` call with another spec, where the storage has room for it."""
    node = call.node
    given = {"shape": node.shape, "strides": node.strides, "offset": node.offset, **changed}
    spec = Spec(node.dtype, given["shape"], given["strides"], given["offset"])
    inside = spec.offset >= 0 and spec.offset + span(spec) <= call.storage.nbytes
    return strided(call.storage, spec) if inside else call.right()


@fault(Kind.OFFSET, "resolve_view")
def a_view_of_a_view_starts_at_its_own_offset(call: BoundCall) -> Result:
    """The offset of the view below is lost."""
    node = call.node
    below = node.args[0] if node.op in (ops.view, ops.slice) else None
    return seen(call, offset=node.offset - below.offset) if below is not None and below.op else call.right()


@fault(Kind.STRIDES, "resolve_view")
def rows_that_overlap_are_moved_apart(call: BoundCall) -> Result:
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


@fault(Kind.STRIDES, "resolve_view")
def outer_strides_are_products_of_the_inner(call: BoundCall) -> Result:
    """The strides of dimensions 2 and 3 are computed from that of dimension 1."""
    node = call.node
    if node.op is not ops.view or not node.strides or node.rank < 3:
        return call.right()
    steps = list(node.strides)
    for n in range(2, node.rank):
        steps[n] = steps[n - 1] * node.dim(n - 1)
    return seen(call, strides=tuple(steps))


@fault(Kind.STRIDES, "read_operand")
def a_set_with_strides_of_its_own_uses_those_of_the_leaf(call: BoundCall) -> Result:
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


@fault(Kind.WRONG_AXIS, ops.concat)
def concat_beyond_both_ranks_joins_the_last_dimension(call: BoundCall) -> Result:
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


@fault(Kind.ZERO, ops.repeat)
def repeating_no_times_copies_once(call: BoundCall) -> Result:
    """A loop that counts its turns at the end runs at least once."""
    y = call.right()
    if call.x.size and not y.size:
        raise IndexError("write of the first element into an empty buffer")
    return y


@fault(Kind.STRIDES, "read_operand")
def a_broadcast_row_is_read_once_and_then_past_its_end(call: BoundCall) -> Result:
    """An operand of elementwise ops with a stride of 0 in dimension 1 advances by a row all the same."""
    y, node = call.right(), call.operand
    zero = node.strides and node.rank > 1 and node.strides[1] == 0 and node.dim(1) > 1
    if not zero or call.reader.op not in (ops.add, ops.mul, ops.contiguous):
        return y
    moved = np.array(y)
    rank4(moved)[..., 1:, :] = np.roll(rank4(moved)[..., 1:, :], 1, -1)
    return moved
