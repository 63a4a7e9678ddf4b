"""The kernels, which make the ONNX nodes of one op, a module per family; importing this package fills their table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module
from pkgutil import iter_modules

from backbay import Graph, Node, ops
from backbay_native import ATTENTION, GATES, RECURRENCE, NativeCode

from ..memory.working_memory import PeakMemoryCalculator, never, nothing
from . import attention, matrix, sequence
from .kernel_table import kernel

KERNELS = kernel
for family in iter_modules(__path__, f"{__name__}."):
    import_module(family.name)


def peak_memory(
    graph: Graph, nodes: Sequence[Node], copied: Collection[int], native: NativeCode
) -> PeakMemoryCalculator:
    """The most bytes that some nodes of a graph hold at one time; `copied` are views."""
    declared = dict(KERNELS.working_memory)
    for op in (ops.mulmat, ops.mulmat_full_prec):
        declared[op] = matrix.native_codes_memory(native.formats)
    if native.has(GATES):
        declared[ops.silu] = nothing
    if native.has(RECURRENCE):
        declared |= {ops.delta_rule: nothing, ops.ssm_scan: sequence.native_states_memory}
    if native.has(ATTENTION):
        declared[ops.scaled_dot_product_attention] = attention.native_attention_memory
    return PeakMemoryCalculator(
        graph, nodes, declared, copied, attention.native_code_serves if native.has(ATTENTION) else never
    )
