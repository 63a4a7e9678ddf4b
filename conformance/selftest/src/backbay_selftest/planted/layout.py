"""Strides, layouts and view offsets that are not looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import KernelBackend, Node, Plan, ops
from backbay.plugin import Bytes

from ..faults import Array, Kernel, Right, fault, named
from ..seeing import instead, is_operand, looked, storage_bytes

STRIDES = "strides or layout ignored"
OFFSET = "view offset ignored"
UNARY = named("silu", "gelu", "relu", "tanh", "exp", "sqr", "neg", "sigmoid", "scale")


def packed(right: Kernel, reader: Node, operand: Node, arrays: Sequence[Array]) -> Array:
    """The operand read as if its elements adjoined."""
    return right(reader, operand, instead(arrays, operand, looked(operand, arrays)))


@fault(STRIDES, "read_operand", like="L25568")
def sum_reads_a_permuted_row_as_contiguous(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """Sums walk along memory, whatever the stride of dimension 0 says."""
    if reader.op is ops.sum_rows and operand.strides and operand.stride(0) != operand.dtype.type_size:
        return packed(right, reader, operand, arrays)
    return right(reader, operand, arrays)


@fault(STRIDES, "read_operand", like="L13155")
def mulmat_takes_permuted_activations_for_contiguous(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """The second operand of a matrix product is read as if it had never been permuted."""
    if is_operand(reader, operand, ops.mulmat, 1) and operand.strides:
        return packed(right, reader, operand, arrays)
    return right(reader, operand, arrays)


@fault(STRIDES, "read_operand", like="L15956")
def softmax_ignores_the_gap_between_rows(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """Rows of a view with gaps are taken to follow each other closely."""
    if reader.op is ops.softmax and operand.strides and operand.stride(0) == operand.dtype.type_size:
        return packed(right, reader, operand, arrays)
    return right(reader, operand, arrays)


@fault(STRIDES, "read_operand", like="T192212")
def second_operand_of_arithmetic_is_read_as_packed(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """Binary ops use the strides of their first operand's shape for the second one."""
    if reader.op in named("add", "sub", "mul", "div") and operand is reader.args[1] and operand.strides:
        return packed(right, reader, operand, arrays)
    return right(reader, operand, arrays)


@fault(STRIDES, "read_operand", like="T150967")
def activations_ignore_a_step_in_dimension_0(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """Elementwise kernels honour the strides of rows, but take elements of a row to adjoin."""
    if reader.op in UNARY and operand.strides and operand.stride(0) > operand.dtype.type_size:
        strides = (operand.dtype.type_size, *operand.strides[1:])
        return right(reader, operand, instead(arrays, operand, looked(operand, arrays, strides=strides)))
    return right(reader, operand, arrays)


@fault(STRIDES, "read_operand", like="L27663")
def copy_writes_a_strided_slot_as_packed(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """The destination's strides are not passed to the kernel that copies."""
    if is_operand(reader, operand, ops.copy, 1) and operand.strides:
        return packed(right, reader, operand, arrays)
    return right(reader, operand, arrays)


@fault(STRIDES, ops.contiguous, like="L15037")
def contiguous_of_a_rank_4_permutation_swaps_the_outer_axes(right: Kernel, x: Array, *shape: int) -> Array:
    """The fast path for transposed tensors forgets dimension 3 where both outer extents are equal."""
    if x.ndim == 4 and not x.flags.c_contiguous and x.shape[0] == x.shape[1] > 1:
        x = x.swapaxes(0, 1)
    return right(x, *shape)


@fault(STRIDES, "read_operand", like="L2830")
def rope_reads_the_heads_of_a_fused_projection_as_packed(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """Queries that are a view of one fused projection lose the distance between tokens."""
    if is_operand(reader, operand, ops.rope, 0) and operand.strides:
        return packed(right, reader, operand, arrays)
    return right(reader, operand, arrays)


@fault(STRIDES, "read_operand", like="ggml#1497")
def rows_ignores_the_row_stride_of_its_table(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """Row numbers are multiplied with the row's own size instead of the table's stride."""
    if is_operand(reader, operand, ops.rows, 0) and operand.strides:
        return packed(right, reader, operand, arrays)
    return right(reader, operand, arrays)


@fault(STRIDES, "compile", like="T150967")
def a_permuted_output_is_read_in_storage_order(right: Right, _: KernelBackend, graph: Any) -> Plan:
    """Reading an output that is a permuted view returns its bytes as they lie."""
    plan: Plan = right(graph)
    gathered = plan.read

    def read(node: Node) -> Bytes:
        if node.strides is None or node.stride(0) == node.dtype.type_size or 0 in node.shape:
            return gathered(node)
        data = storage_bytes(node, plan.arrays)  # type: ignore[attr-defined]
        return data[node.offset : node.offset + node.nbytes].copy()

    plan.read = read  # type: ignore[method-assign]
    return plan


@fault(OFFSET, "read_operand", like="L19145")
def mulmat_reads_a_weight_view_from_its_storage_start(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """A weight that is a view is read from where its storage begins."""
    if is_operand(reader, operand, ops.mulmat, 0) and operand.offset:
        raw = looked(operand, arrays, strides=operand.strides, offset=0)
        return right(reader, operand, instead(arrays, operand, raw))
    return right(reader, operand, arrays)


@fault(OFFSET, "read_operand", like="L19145")
def norms_ignore_the_offset_of_a_view(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """rms_norm and layer_norm start at the storage's first byte."""
    if reader.op in named("rms_norm", "layer_norm") and operand is reader.args[0] and operand.offset:
        raw = looked(operand, arrays, strides=operand.strides, offset=0)
        return right(reader, operand, instead(arrays, operand, raw))
    return right(reader, operand, arrays)


@fault(OFFSET, "resolve_view", like="L19145")
def the_offset_of_a_view_of_a_view_counts_from_the_storage(
    right: Kernel, _: KernelBackend, node: Node, storage: Bytes
) -> Array:
    """A view of a view forgets where the view that it looks into begins."""
    if node.op in (ops.view, ops.slice) and node.args[0].is_view and node.args[0].offset:
        return shifted(right, node, storage, node.offset - node.args[0].offset)
    return right(node, storage)


@fault(OFFSET, "resolve_view", like="L19145")
def offsets_of_half_precision_views_count_4_byte_elements(
    right: Kernel, _: KernelBackend, node: Node, storage: Bytes
) -> Array:
    """The offset is divided by 4 to count elements, also where an element has 2 bytes."""
    if node.op is not None and node.op.view and node.dtype.type_size == 2:
        return shifted(right, node, storage, node.offset // 4 * 2)
    return right(node, storage)


@fault(OFFSET, "read_operand", like="L17108")
def set_rows_into_a_view_writes_from_the_storage_start(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """Rows written into a view land as many rows too early as the view begins late."""
    if is_operand(reader, operand, ops.set_rows, 0) and operand.offset:
        raw = looked(operand, arrays, strides=operand.strides, offset=0)
        return right(reader, operand, instead(arrays, operand, raw))
    return right(reader, operand, arrays)


@fault(OFFSET, "resolve_view", like="L17108")
def views_of_a_cache_ignore_their_offset(
    right: Kernel, _: KernelBackend, node: Node, storage: Bytes
) -> Array:
    """Views into a persistent leaf, one that graphs write into, begin at its start."""
    if node.op in (ops.view, ops.slice) and node.storage.kind == "state":
        return shifted(right, node, storage, 0)
    return right(node, storage)


@fault(OFFSET, "read_operand", like="L19145")
def offsets_below_one_row_are_dropped(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """A view's offset is turned into a row number, so that one inside of a row loses its column."""
    row = operand.storage.row_nbytes
    if (
        operand.offset
        and reader.op in named("add", "mul", "rope", "contiguous")
        and row
        and operand.offset % row
    ):
        raw = looked(operand, arrays, strides=operand.strides, offset=operand.offset // row * row)
        return right(reader, operand, instead(arrays, operand, raw))
    return right(reader, operand, arrays)


def shifted(right: Kernel, node: Node, storage: Bytes, offset: int) -> Array:
    """A view from another offset, which the storage has room for since it is lower."""
    keep, node.offset = node.offset, max(0, offset)
    try:
        return np.asarray(right(node, storage))
    finally:
        node.offset = keep
