"""The kernels, a module per family; importing this package fills their table."""

from __future__ import annotations

from collections.abc import Collection

from backbay import Graph, ops

from ..memory.working_memory import PeakMemory, nothing
from ..session.native import NativeCode
from . import (
    attention,
    binary,
    elementwise,
    index,
    linear,
    matrix,
    norm,
    order,
    reduce,
    sequence,
    shape,
    spatial,
    write,
)
from .kernel_table import kernel

KERNELS = kernel
FAMILIES = (
    attention, binary, elementwise, index, linear, matrix, norm, order, reduce, sequence, shape, spatial, write
)  # fmt: skip


def peak_memory(graph: Graph, copied: Collection[int], native: NativeCode | None) -> PeakMemory:
    """The most bytes that a graph holds at one time, with native code or without; `copied` are views."""
    declared = dict(KERNELS.working_memory)
    if native is None:
        return PeakMemory(graph, declared, copied)
    for op in (ops.mulmat, ops.mulmat_full_prec):
        declared[op] = matrix.native_codes(native.products)
    if native.gates:
        declared[ops.silu] = nothing
    if native.recurs:
        declared[ops.delta_rule] = nothing
        declared[ops.ssm_scan] = sequence.native_states
    if not native.attends:
        return PeakMemory(graph, declared, copied)
    declared[ops.scaled_dot_product_attention] = attention.native_sums
    return PeakMemory(graph, declared, copied, attention.reads_halves)
