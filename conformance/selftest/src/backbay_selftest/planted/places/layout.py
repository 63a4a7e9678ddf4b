"""Ignored strides, layouts and view offsets."""

from __future__ import annotations

from backbay import Node, Plan, ops
from backbay.internals import Bytes

from ...faults import AnyOp, BoundCall, Kind, Result, fault, named
from ...misread_operands import instead, looked, reads, storage_bytes

BINARY = named("add", "sub", "mul", "div")
UNARY = named("silu", "gelu", "relu", "tanh", "exp", "sqr", "neg", "sigmoid", "scale")


def misread(call: BoundCall, strides: tuple[int, ...] | None = None, offset: int | None = None) -> Result:
    """The operand read with other strides, contiguous ones by default, or from another offset."""
    seen = looked(call.operand, call.arrays, strides, offset)
    return call.right(arrays=instead(call.arrays, call.operand, seen))


def packed(call: BoundCall) -> Result:
    """The operand read as if it were contiguous."""
    return misread(call) if call.operand.strides else call.right()


def from_start(call: BoundCall) -> Result:
    """The operand read from the first byte of its storage."""
    return misread(call, call.operand.strides, 0) if call.operand.offset else call.right()


def misreads(name: str, kind: Kind, *readers: AnyOp, operand: int = 0) -> None:
    """Register a fault: these ops read one of their operands without its strides or its offset."""
    read = packed if kind is Kind.STRIDES else from_start

    def wrong(call: BoundCall) -> Result:
        chosen = any(reads(call, op, operand) for op in readers)
        return read(call) if chosen else call.right()

    fault(kind, "read_operand", name=name)(wrong)


misreads("mulmat_takes_permuted_activations_for_contiguous", Kind.STRIDES, ops.mulmat, operand=1)
misreads("copy_writes_a_strided_slot_as_packed", Kind.STRIDES, ops.copy, operand=1)
misreads("second_operand_of_arithmetic_is_read_as_packed", Kind.STRIDES, *BINARY, operand=1)
misreads("rope_reads_the_heads_of_a_fused_projection_as_packed", Kind.STRIDES, ops.rope)
misreads("rows_ignores_the_row_stride_of_its_table", Kind.STRIDES, ops.rows)
misreads("mulmat_reads_a_weight_view_from_its_storage_start", Kind.OFFSET, ops.mulmat)
misreads("norms_ignore_the_offset_of_a_view", Kind.OFFSET, ops.rms_norm, ops.layer_norm)
misreads("set_rows_into_a_view_writes_from_the_storage_start", Kind.OFFSET, ops.set_rows)


@fault(Kind.STRIDES, "read_operand")
def sum_reads_a_permuted_row_as_contiguous(call: BoundCall) -> Result:
    """Sums ignore the stride of dimension 0."""
    permuted = call.operand.stride(0) != call.operand.dtype.type_size
    return packed(call) if permuted and reads(call, ops.sum_rows) else call.right()


@fault(Kind.STRIDES, "read_operand")
def softmax_ignores_the_gap_between_rows(call: BoundCall) -> Result:
    """Rows of a view with gaps are read as adjacent rows."""
    whole = call.operand.stride(0) == call.operand.dtype.type_size
    return packed(call) if whole and reads(call, ops.softmax) else call.right()


@fault(Kind.STRIDES, "read_operand")
def activations_ignore_a_step_in_dimension_0(call: BoundCall) -> Result:
    """Elementwise kernels honour the strides of rows, but read adjacent elements within a row."""
    operand, step = call.operand, call.operand.dtype.type_size
    if call.reader.op in UNARY and operand.strides and operand.stride(0) > step:
        return misread(call, (step, *operand.strides[1:]))
    return call.right()


@fault(Kind.STRIDES, ops.contiguous)
def contiguous_of_a_rank_4_permutation_swaps_the_outer_axes(call: BoundCall) -> Result:
    """The fast path for transposed tensors forgets dimension 3 where both outer extents are equal."""
    x = call.x
    if x.ndim == 4 and not x.flags.c_contiguous and x.shape[0] == x.shape[1] > 1:
        x = x.swapaxes(0, 1)
    return call.right(x=x)


@fault(Kind.STRIDES, "compile")
def a_permuted_output_is_read_in_storage_order(call: BoundCall) -> Result:
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


@fault(Kind.OFFSET, "resolve_view")
def the_offset_of_a_view_of_a_view_counts_from_the_storage(call: BoundCall) -> Result:
    """A view of a view loses the offset of the inner view."""
    node = call.node
    if node.op in (ops.view, ops.slice) and node.args[0].is_view and node.args[0].offset:
        return shifted(call, node.offset - node.args[0].offset)
    return call.right()


@fault(Kind.OFFSET, "resolve_view")
def offsets_of_half_precision_views_count_4_byte_elements(call: BoundCall) -> Result:
    """The offset is divided by 4 to count elements, also where an element has 2 bytes."""
    half = call.node.op is not None and call.node.op.view and call.node.dtype.type_size == 2
    return shifted(call, call.node.offset // 4 * 2) if half else call.right()


@fault(Kind.OFFSET, "resolve_view")
def views_of_a_cache_ignore_their_offset(call: BoundCall) -> Result:
    """Views into a leaf that graphs write start at the leaf's first byte."""
    cached = call.node.op in (ops.view, ops.slice) and call.node.storage.kind == "state"
    return shifted(call, 0) if cached else call.right()


@fault(Kind.OFFSET, "read_operand")
def offsets_below_one_row_are_dropped(call: BoundCall) -> Result:
    """A view's offset is rounded down to whole rows."""
    operand, row = call.operand, call.operand.storage.row_nbytes
    if row and operand.offset % row and call.reader.op in named("add", "mul", "rope", "contiguous"):
        return misread(call, operand.strides, operand.offset // row * row)
    return call.right()


def shifted(call: BoundCall, offset: int) -> Result:
    """The view from a lower offset, for which the storage has room."""
    keep, call.node.offset = call.node.offset, max(0, offset)
    try:
        return call.right()
    finally:
        call.node.offset = keep
