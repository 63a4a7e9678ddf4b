"""Ops, their attributes and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from backbay import DType, FlashAttention, Node, Placement, Spec, ops
from backbay.internals import KernelPlan, contiguous_strides
from backbay.plugin import Entry, MappedBuffer, strided

from ...fault import FaultKind, InterceptedCall, Result, fault, float16, numbers_of_first
from ...fused import rank4
from ..places.broadcasting import GRID


@fault(FaultKind.STRIDES, "resolve_view")
def a_stride_of_zero_is_taken_for_a_contiguous_one(call: InterceptedCall) -> Result:
    """A view that repeats its rows by a stride of 0 is read as a contiguous view."""
    node = call.node
    if not node.strides or 0 not in node.strides:
        return call.right()
    plain = contiguous_strides(node.dtype, node.shape)
    steps = tuple(step or other for step, other in zip(node.strides, plain, strict=True))
    beyond = np.concatenate([call.storage, np.zeros(4 * node.nbytes, np.uint8)])
    return strided(beyond, Spec(node.dtype, node.shape, steps, node.offset))


@fault(FaultKind.TAILS, "store")
def the_last_tile_of_a_transpose_is_not_written(call: InterceptedCall) -> Result:
    """A transposing copy works in tiles of 32 by 32, and skips a last tile that is cut in both directions."""
    call.right()
    strides = call.node.args[0].strides if call.node.op is ops.contiguous else None
    if strides and call.out.ndim > 1 and strides[0] > strides[1] and min(call.out.shape[-2:]) > 32:
        rows, columns = (n // 32 * 32 for n in call.out.shape[-2:])
        call.out[..., rows:, columns:] = 0


@fault(FaultKind.WRONG_AXIS, ops.set_rows)
def ids_of_set_rows_serve_slices_in_groups(call: InterceptedCall) -> Result:
    """Where slices share sets of ids, each set serves consecutive slices."""
    few, many = rank4(call.ids).shape[2], rank4(call.src).shape[1]
    if not 1 < few < many:
        return call.right()
    return call.right(ids=np.repeat(call.ids, many // few, axis=-2))


@fault(FaultKind.SCALARS, ops.fill)
def integers_are_filled_in_through_single_precision(call: InterceptedCall) -> Result:
    """The value passes through a float32."""
    through = float(np.float32(call.value))
    return call.right(value=through if abs(through) < 1 << 31 else call.value)


@fault(FaultKind.SPECIAL, "store")
def a_nan_with_all_bits_set_becomes_a_zero_in_bf16(call: InterceptedCall) -> Result:
    """Rounding to bf16 treats NaN as a number, and carries into its sign."""
    call.right()
    if call.node.dtype is DType.BF16 and call.node.op is ops.cast:
        bits = np.asarray(call.result, np.float32).view(np.uint32) & 0x7FFFFF
        call.out[(np.isnan(call.result) & (bits == 0x7FFFFF)).reshape(call.out.shape)] = 0


@fault(FaultKind.OVERFLOW, ops.rows)
def ids_travel_as_half_precision(call: InterceptedCall) -> Result:
    """The device indexes with f16 numbers, which hold every integer up to 2048 only."""
    last = max(call.x.shape[-2] - 1, 0) if call.x.ndim > 1 else 0
    return call.right(ids=np.minimum(call.ids.astype(np.float16).astype(np.int64), last))


@fault(FaultKind.OVERFLOW, ops.mul, ops.sum_rows, ops.im2col, ops.repeat)
def the_second_axis_of_the_grid_ends_at_65535(call: InterceptedCall) -> Result:
    """A launch has a block for each row, and at most as many blocks as the grid."""
    y = np.array(call.right())
    if y.ndim > 1 and y.shape[-2] > GRID:
        y[..., GRID:, :] = 0
    return y


@fault(FaultKind.PRECISION, ops.mulmat_full_prec)
def activations_meet_half_precision_weights_in_half_precision(call: InterceptedCall) -> Result:
    """Where f16 holds the weights exactly, the activations are rounded to f16, too."""
    narrow = (float16(call.w) == call.w).all()
    return call.right(x=float16(call.x) if narrow else call.x)


@fault(FaultKind.FUSION, "run_node")
def a_fused_gate_takes_its_halves_the_other_way_round(call: InterceptedCall) -> Result:
    """Where gate and values are views of one tensor, the fused kernel exchanges them."""
    args = call.node.args
    value, gate = args if call.node.op is ops.silu else (None, None)
    if value and gate and value.storage is gate.storage and value.offset != gate.offset:
        call.node.args = (gate, value)
    try:
        call.right()
    finally:
        call.node.args = args


@fault(FaultKind.LONG, "run_node")
def flash_attention_asked_for_drops_the_last_positions(call: InterceptedCall) -> Result:
    """With flash attention on, a history past a multiple of 16 is cut there."""
    call.right()
    asked = call.backend.params.flash_attention is FlashAttention.ON
    if asked and call.node.op is ops.scaled_dot_product_attention:
        history = call.node.args[1].dim(2)
        call.arrays[call.node.index][...] *= 1 if history % 16 == 0 or history < 16 else np.float32(0.9)


@fault(FaultKind.UNDEFINED, "weight")
def weights_are_found_without_the_gaps_between_them(call: InterceptedCall) -> Result:
    """A weight's offset is the sum of the sizes before it, without the file's alignment."""
    found, info = call.right(), call.info
    others = sorted(call.backend.model.tensors.values(), key=lambda other: other.offset)
    before = [other for other in others if other.offset < info.offset]
    missed = info.offset - others[0].offset - sum(other.nbytes for other in before)
    whole = np.concatenate([np.array(call.right(info=other).read()) for other in before] or [found.read()])
    start = np.array(found.read())
    return MappedBuffer(np.concatenate([whole[-missed:], start])[: info.nbytes]) if missed else found


@fault(FaultKind.OVERFLOW, ops.add_id)
def experts_are_counted_in_a_byte(call: InterceptedCall) -> Result:
    return call.right(ids=call.ids % 256)


@fault(FaultKind.OVERFLOW, ops.tri)
def a_triangle_is_drawn_with_signed_bytes(call: InterceptedCall) -> Result:
    """Rows and columns past 127 count as negative ones."""
    x = call.x
    kept = call.right(x=np.ones_like(x)) != 0
    if x.shape[-1] > 128:
        places = np.arange(x.shape[-1]).astype(np.int8)
        above = places if call.kind.startswith("upper") else -places
        kept = (above >= above[:, None]) if call.kind.endswith("diag") else (above > above[:, None])
    return np.where(kept, x, np.zeros((), x.dtype))


@fault(FaultKind.SPECIAL, ops.conv2d)
def padding_is_the_edge_times_zero(call: InterceptedCall) -> Result:
    """NaN on an edge reaches windows that only touch the padding beside it."""
    data, p0, p1 = call.data, call.p0, call.p1
    if 0 in data.shape:
        return call.right()
    widths = [(0, 0)] * (data.ndim - 2) + [(p1, p1), (p0, p0)][-data.ndim :]
    inside = np.pad(np.ones_like(data), widths)
    return call.right(data=np.pad(data, widths, "edge") * inside, p0=0, p1=0)


@fault(FaultKind.BLOCKS, "read_operand")
def decoded_weights_are_kept_by_their_shape(call: InterceptedCall) -> Result:
    """The second weight of a shape and type is read as the first."""
    operand = call.operand
    weight = operand.kind == "parameter" and operand.dtype.is_quantized and operand.op is None
    if not weight or call.reader.op.moves:
        return call.right()
    kept = vars(call.backend).setdefault("kept", {})
    return numbers_of_first(call, kept, (operand.dtype, operand.shape))


@fault(FaultKind.ALIASING, "compile")
def what_another_context_holds_is_copied_when_compiled(call: InterceptedCall) -> Result:
    """A leaf of another context that a graph only reads is copied once."""
    plan, nodes = call.right(), call.graph.nodes
    written = {n.storage.index for n in nodes if n.op is not None and n.op.writes is not None}
    for state in call.graph.of_kind("state") if plan.arrays else ():
        if state.index not in written:
            copied = plan._storage(state).copy()
            for node in (n for n in nodes if n.storage is state):
                plan.arrays[node.index] = call.backend.resolve_view(node, copied)
    return plan


@fault(FaultKind.CLAIMS, "start")
def caches_are_booked_with_the_first_layer(call: InterceptedCall) -> Result:
    call.right()
    right = call.backend._entry

    def first(placement: Placement) -> Entry:
        entry: Entry = right(placement)
        return replace(entry, layer=0) if entry.kind == "cache" else entry

    call.backend._entry = first


@fault(FaultKind.SCALARS, "run_plan")
def columns_past_the_batch_size_are_not_computed(call: InterceptedCall) -> Result:
    """The hint of a batch size is taken for a limit."""
    call.right()
    size = call.plan.graph.batch_size
    for node in call.plan.graph.nodes:
        if node.op is ops.mulmat and size and node.rank > 1 and node.dim(1) > size:
            call.plan.arrays[node.index][..., size:, :] = 0


@fault(FaultKind.CLAIMS, "compile")
def casts_into_blocks_fail_when_they_run(call: InterceptedCall) -> Result:
    """An impossible conversion is noticed only in the middle of a compute."""
    return KernelPlan(call.backend, call.graph)


@fault(FaultKind.PRECISION, "read_operand")
def large_batches_are_multiplied_in_half_precision(call: InterceptedCall) -> Result:
    """Graphs that announce 16 columns or more round the operands of products to f16."""
    large = (call.graph.batch_size or 0) >= 16
    return float16(call.right()) if large and call.reader.op is ops.mulmat else call.right()


@fault(FaultKind.TAILS, ops.im2col)
def channels_past_the_64th_come_from_the_image_before(call: InterceptedCall) -> Result:
    data = np.array(call.data, ndmin=4)
    if data.shape[1] > 64:
        data[1:, 64:] = data[:-1, 64:].copy()
    return call.right(data=data)


@fault(FaultKind.UNDEFINED, "run_node")
def rows_behind_the_bound_ones_are_not_written(call: InterceptedCall) -> Result:
    """Of a state, the rows up to the last one that a view reads are bound; set_rows behind them is lost."""
    state = call.node.args[0]
    leaf = state.leaf if call.node.op is ops.set_rows else None
    if leaf is None or leaf.row_axis != 1 or state.rank != 2:
        call.right()
        return
    ends = [end_of(view, state) for view in read_views(call.graph.nodes, state)]
    behind = call.arrays[state.index][max(ends, default=state.dim(1)) :]
    before = behind.copy()
    call.right()
    behind[...] = before


def read_views(nodes: Sequence[Node], state: Node) -> list[Node]:
    """The views of a state that ops read."""
    readers = [node for node in nodes if node.op is not None and not node.op.view and node.op.writes is None]
    found = [operand for node in readers for operand in node.operands]
    return [operand for operand in found if operand.storage is state and operand.is_view and operand.size]


def end_of(view: Node, state: Node) -> int:
    """The number of rows up to the last one that a view reads."""
    last = view.offset + sum((extent - 1) * view.stride(n) for n, extent in enumerate(view.shape))
    return int(last // state.stride(1)) + 1


@fault(FaultKind.ROPE, "run_node")
def one_table_of_angles_serves_a_graph(call: InterceptedCall) -> Result:
    """Sines and cosines are kept for the graph by positions, dim and mode: another base or scale finds the first ones."""
    node, args, alike = call.node, call.node.args, (1, 2, 5)
    for other in call.graph.nodes if node.op is ops.rope else ():
        if other.op is ops.rope and all(other.args[i] == args[i] for i in alike):
            node.args = (args[0], *other.args[1:])
            break
    try:
        call.right()
    finally:
        node.args = args


@fault(FaultKind.STRIDES, "run_node")
def four_reversed_dimensions_are_copied_with_two_exchanged(call: InterceptedCall) -> Result:
    """A copy for the order 3 2 1 0 leaves the middle dimensions as they were."""
    call.right()
    if call.node.op is not ops.contiguous:
        return
    x = call.arrays[call.node.args[0].index]
    if (
        x.ndim == 4
        and 1 not in x.shape
        and x.strides[0] == x.itemsize
        and list(x.strides) == sorted(x.strides)
    ):
        out = call.arrays[call.node.index]
        out[...] = x.swapaxes(1, 2).reshape(out.shape)


@fault(FaultKind.SCALARS, ops.pad_ext)
def zeros_before_outer_dimensions_alone_come_behind(call: InterceptedCall) -> Result:
    if call.lp0 or call.rp0 or call.lp1 or call.rp1:
        return call.right()
    return call.right(lp2=0, rp2=call.lp2 + call.rp2, lp3=0, rp3=call.lp3 + call.rp3)


@fault(FaultKind.LONG, ops.delta_rule)
def the_first_token_of_a_later_chunk_does_not_decay(call: InterceptedCall) -> Result:
    """Tokens come in chunks of 64."""
    decay = rank4(call.decay).copy()
    decay[:, 64::64] = 0
    return call.right(decay=decay)
