"""Faults written by somebody who had not read the suite, and which it did not notice then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backbay import Buffer, DType, FlashAttention, Graph, KernelBackend, Node, Placement, Spec, ops
from backbay.gguf import TensorInfo
from backbay.plugin import Bytes, Entry, KernelPlan, MappedBuffer, check_cancel, contiguous_strides, strided

from ..faults import Array, Kernel, Right, fault, rounded
from ..fused import rank4

GRID = 65535


@fault("strides or layout ignored", "resolve_view", like="L25568")
def a_stride_of_zero_is_taken_for_a_contiguous_one(
    right: Right, _: KernelBackend, node: Node, storage: Bytes
) -> Array:
    """A view that repeats its rows in place is read as if they lay one after the other."""
    if not node.strides or 0 not in node.strides:
        seen: Array = right(node, storage)
        return seen
    plain = contiguous_strides(node.dtype, node.shape)
    steps = tuple(step or other for step, other in zip(node.strides, plain, strict=True))
    beyond = np.zeros(storage.size + 4 * node.nbytes, np.uint8)
    beyond[: storage.size] = storage
    return strided(beyond, Spec(node.dtype, node.shape, steps, node.offset))


@fault("odd sizes, vector tails, head sizes", "store", like="L26708")
def the_last_tile_of_a_transpose_is_not_written(
    right: Right, _: KernelBackend, node: Node, result: Array, out: Array
) -> None:
    """A transposing copy works in tiles of 32 by 32, and forgets the one that is short in both directions."""
    right(node, result, out)
    a = node.args[0]
    turned = node.op is ops.contiguous and out.ndim > 1 and a.strides and a.strides[0] > a.strides[1]
    if turned and min(out.shape[-2:]) > 32:
        rows, columns = (n // 32 * 32 for n in out.shape[-2:])
        out[..., rows:, columns:] = 0


@fault("broadcast along the wrong axis", ops.set_rows, like="L14817")
def ids_of_set_rows_serve_slices_in_groups(right: Kernel, x: Array, src: Array, ids: Array) -> Array:
    """Where there are fewer sets of ids than slices, each serves some that follow each other."""
    few, many = rank4(ids).shape[2], rank4(src).shape[1]
    if not 1 < few < many:
        return right(x, src, ids)
    return right(x, src, np.repeat(ids, many // few, axis=-2))


@fault("scalar parameters ignored or swapped", ops.fill, like="L20350")
def integers_are_filled_in_through_single_precision(right: Kernel, x: Array, value: float) -> Array:
    """The value is a float32 on its way to the device."""
    through = float(np.float32(value))
    return right(x, through if abs(through) < 1 << 31 else value)


@fault("-inf, NaN, fully masked rows", "store", like="L12776")
def a_nan_with_all_bits_set_becomes_a_zero_in_bf16(
    right: Right, _: KernelBackend, node: Node, result: Array, out: Array
) -> None:
    """Rounding adds to the bits of a NaN as if it were a number, and carries into its sign."""
    right(node, result, out)
    if node.dtype is DType.BF16 and node.op is ops.cast:
        lost = np.isnan(result) & (np.asarray(result, np.float32).view(np.uint32) & 0x7FFFFF == 0x7FFFFF)
        out[lost.reshape(out.shape)] = 0


@fault("32-bit index or grid overflow", ops.rows, like="O28107")
def ids_travel_as_half_precision(right: Kernel, x: Array, ids: Array) -> Array:
    """The device indexes with f16 numbers, which hold every integer up to 2048 only."""
    last = max(x.shape[-2] - 1, 0) if x.ndim > 1 else 0
    return right(x, np.minimum(ids.astype(np.float16).astype(np.int64), last))


@fault("32-bit index or grid overflow", ops.mul, ops.sum_rows, ops.im2col, ops.repeat, like="O32299")
def the_second_axis_of_the_grid_ends_at_65535(right: Kernel, *args: Any) -> Array:
    """A block for each row, and no more of them than the grid has."""
    y = np.array(right(*args))
    if y.ndim > 1 and y.shape[-2] > GRID:
        y[..., GRID:, :] = 0
    return y


@fault("low-precision accumulation, overflow", ops.mulmat_full_prec, like="L13607")
def activations_meet_half_precision_weights_in_half_precision(right: Kernel, w: Array, x: Array) -> Array:
    """The operands of a product with weights that f16 holds are rounded to f16, the activations too."""
    return right(w, rounded(x, np.float16)) if (rounded(w, np.float16) == w).all() else right(w, x)


@fault("only in a fused or larger graph", "run_node", like="L15660")
def a_fused_gate_takes_its_halves_the_other_way_round(
    right: Right, _: KernelBackend, node: Node, arrays: Sequence[Array]
) -> None:
    """Where gate and values are views of one tensor, the fused kernel exchanges them."""
    args = node.args
    value, gate = args if node.op is ops.silu else (None, None)
    if value and gate and value.storage is gate.storage and value.offset != gate.offset:
        node.args = (gate, value)
    try:
        right(node, arrays)
    finally:
        node.args = args


@fault("right on small, garbage on long inputs", "run_node", like="ollama#17895")
def flash_attention_asked_for_drops_the_last_positions(
    right: Right, backend: KernelBackend, node: Node, arrays: Sequence[Array]
) -> None:
    """With flash attention on, a history past a multiple of 16 is cut there."""
    right(node, arrays)
    if node.op is ops.scaled_dot_product_attention and backend.params.flash_attention is FlashAttention.ON:
        history = node.args[1].dim(2)
        arrays[node.index][...] *= 1 if history % 16 == 0 or history < 16 else np.float32(0.9)


@fault("races, missing synchronisation", "run_plan", like="L20084")
def a_cancellation_is_looked_for_once(right: Right, _: KernelBackend, plan: Any, cancel: Any) -> None:
    """What is cancelled while it runs runs to its end."""
    check_cancel(cancel)
    right(plan, None)


@fault("out of bounds, uninitialised, padding", "weight", like="L17108")
def weights_are_found_without_the_gaps_between_them(
    right: Right, backend: KernelBackend, info: TensorInfo
) -> Buffer:
    """Where a weight lies is taken for the sum of the sizes before it, and a file aligns them."""
    assert backend.model is not None
    found: Buffer = right(info)
    others = sorted(backend.model.tensors.values(), key=lambda other: other.offset)
    before = [other for other in others if other.offset < info.offset]
    missed = info.offset - others[0].offset - sum(other.nbytes for other in before)
    whole = np.concatenate([np.array(right(other).read()) for other in before] or [found.read()])
    start = np.array(found.read())
    return MappedBuffer(np.concatenate([whole[-missed:], start])[: info.nbytes]) if missed else found


@fault("32-bit index or grid overflow", ops.add_id, like="L16849")
def experts_are_counted_in_a_byte(right: Kernel, x: Array, t2: Array, ids: Array) -> Array:
    """From expert 256 on, the bias is that of expert 0 again."""
    return right(x, t2, ids % 256)


@fault("32-bit index or grid overflow", ops.tri, like="L16849")
def a_triangle_is_drawn_with_signed_bytes(right: Kernel, x: Array, kind: str) -> Array:
    """Rows and columns past 127 count as negative ones."""
    kept = right(np.ones_like(x), kind) != 0
    if x.shape[-1] > 128:
        places = np.arange(x.shape[-1]).astype(np.int8)
        above = places if kind.startswith("upper") else -places
        kept = (above >= above[:, None]) if kind.endswith("diag") else (above > above[:, None])
    return np.where(kept, x, np.zeros((), x.dtype))


@fault("-inf, NaN, fully masked rows", ops.conv2d, like="O27692")
def padding_is_the_edge_times_zero(right: Kernel, weight: Array, data: Array, *geometry: int) -> Array:
    """What is not a number on an edge reaches windows that only touch the padding beside it."""
    s0, s1, p0, p1, d0, d1 = geometry
    if 0 in data.shape:
        return right(weight, data, *geometry)
    widths = [(0, 0)] * (data.ndim - 2) + [(p1, p1), (p0, p0)][-data.ndim :]
    inside = np.pad(np.ones_like(data), widths)
    return right(weight, np.pad(data, widths, "edge") * inside, s0, s1, 0, 0, d0, d1)


@fault("quantization block edges, repack", "read_operand", like="L17108")
def decoded_weights_are_kept_by_their_shape(
    right: Right, backend: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """The second weight of a shape and type is taken for the first."""
    kept = vars(backend).setdefault("decoded", {})
    assert reader.op is not None
    if (
        operand.kind != "parameter"
        or not operand.dtype.is_quantized
        or operand.op is not None
        or reader.op.moves
    ):
        other: Array = right(reader, operand, arrays)
        return other
    key = operand.dtype, operand.shape
    if key not in kept:
        kept[key] = np.array(right(reader, operand, arrays))
    return np.asarray(kept[key])


@fault("in-place, aliasing, input overwritten", "compile", like="L20084")
def what_another_context_holds_is_copied_when_compiled(
    right: Right, backend: KernelBackend, graph: Graph
) -> Any:
    """A leaf of another context that is only read is read once."""
    plan = right(graph)
    written = {
        node.storage.index for node in graph.nodes if node.op is not None and node.op.writes is not None
    }
    for state in graph.of_kind("state") if plan.arrays else ():
        if state.index not in written:
            copied = plan._storage(state).copy()
            for node in graph.nodes:
                if node.storage is state:
                    plan.arrays[node.index] = backend.resolve_view(node, copied)
    return plan


@fault("capability lies", "_entry", like="L15868")
def caches_are_booked_with_the_first_layer(right: Right, _: KernelBackend, placement: Placement) -> Entry:
    """The report tells the caches of all layers as that of layer 0."""
    entry: Entry = right(placement)
    return replace(entry, layer=0) if entry.kind == "cache" else entry


@fault("scalar parameters ignored or swapped", "run_plan", like="L20350")
def columns_past_the_batch_size_are_not_computed(
    right: Right, _: KernelBackend, plan: Any, cancel: Any
) -> None:
    """What was a hint is taken for a promise."""
    right(plan, cancel)
    size = plan.graph.batch_size
    for node in plan.graph.nodes:
        if node.op is ops.mulmat and size and node.rank > 1 and node.dim(1) > size:
            plan.arrays[node.index][..., size:, :] = 0


@fault("capability lies", "compile", like="executorch#12296")
def casts_into_blocks_fail_when_they_run(right: Right, backend: KernelBackend, graph: Graph) -> Any:
    """What cannot be converted is noticed in the midst of a compute."""
    return KernelPlan(backend, graph)
