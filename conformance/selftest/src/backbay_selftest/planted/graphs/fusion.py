"""Faults of an optimizer: each op is right alone, and wrong beside others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backbay import DType, Node, ops
from backbay.plugin import decode

from ...faults import AnyOp, BoundCall, Kind, Result, fault
from ...fused import Array, exponentials
from ...misread_operands import kernels_of, numbered_modulo, plain


def value(node: Node, arrays: Sequence[Array]) -> Array:
    return decode(arrays[node.index], node.dtype).astype(np.float64)


def follows(node: Node, op: AnyOp, before: AnyOp) -> bool:
    """Whether a node applies `op` to the result of `before`."""
    return node.op is op and node.args[0].op is before


@fault(Kind.FUSION, "run_node")
def a_norm_and_its_weight_are_fused_without_eps(call: BoundCall) -> Result:
    """rms_norm followed by mul runs as one kernel without eps."""
    if not follows(call.node, ops.mul, ops.rms_norm) or call.node.dtype is not DType.F32:
        call.right()
        return
    norm = call.node.args[0]
    (x, weight, eps), keep = norm.args, call.arrays[norm.index].copy()
    norm.args = (x, weight, 0.0)
    call.right(node=norm)
    call.right()
    norm.args, call.arrays[norm.index][...] = (x, weight, eps), keep


@fault(Kind.FUSION, "run_node")
def a_chain_of_additions_loses_its_middle(call: BoundCall) -> Result:
    """Three additions in a row are fused, and the second addition's second operand is left out."""
    node = call.node
    call.right()
    if follows(node, ops.add, ops.add) and follows(node.args[0], ops.add, ops.add) and plain(node):
        lost = node.args[0].args[1]
        if lost.shape == node.shape:
            call.arrays[node.index][...] -= value(lost, call.arrays).astype(np.float32)


@fault(Kind.FUSION, "run_node")
def a_gate_is_applied_to_the_wrong_half(call: BoundCall) -> Result:
    """silu followed by mul becomes a gated kernel, with gate and value exchanged."""
    node = call.node
    call.right()
    if follows(node, ops.mul, ops.silu) and node.args[1].shape == node.shape and plain(node):
        gate, up = value(node.args[0].args[0], call.arrays), value(node.args[1], call.arrays)
        call.arrays[node.index][...] = gate * up / (1 + np.exp(-up))


@fault(Kind.FUSION, "run_node")
def equal_nodes_are_merged_by_their_operands_alone(call: BoundCall) -> Result:
    """Two nodes of one op on the same operand count as equal, whatever their attributes."""
    node = call.node
    memory = call.backend.__dict__.setdefault("merged", {})
    if memory.get("arrays") is not call.arrays or node.index <= memory.get("last", -1):
        memory.clear()
        memory["arrays"] = call.arrays
    memory["last"] = node.index
    call.right()
    if node.op in (ops.scale, ops.clamp, ops.softmax, ops.rms_norm) and node.args[0].leaf is None:
        first = memory.setdefault((node.op, node.args[0].index), call.arrays[node.index].copy())
        call.arrays[node.index][...] = first


@fault(Kind.FUSION, "run_plan")
def writes_that_nobody_reads_are_dropped(call: BoundCall) -> Result:
    """Dead code elimination drops a write into a cache whose result has no reader."""
    read = {o.index for n in call.plan.graph.nodes for o in n.operands}
    for node in kernels_of(call.plan, call.cancel):
        if node.op is None or node.op.writes is None or node.index in read:
            call.backend.run_node(node, call.plan.arrays)


@fault(Kind.FUSION, "run_plan")
def a_read_before_a_write_is_shared_with_one_after(call: BoundCall) -> Result:
    """Two reads of the same range of a leaf are merged, despite a write between them."""
    seen: dict[object, Array] = {}
    for node in kernels_of(call.plan, call.cancel):
        call.backend.run_node(node, call.plan.arrays)
        source = node.args[0]
        if node.op is ops.contiguous and source.storage.leaf is not None and node.strides is None:
            key = (source.storage.index, source.offset, source.shape, source.strides, node.shape)
            call.plan.arrays[node.index][...] = seen.setdefault(key, call.plan.arrays[node.index].copy())


@fault(Kind.FUSION, "run_node")
def scaling_is_lost_before_a_softmax(call: BoundCall) -> Result:
    """scale, add and softmax run as one kernel, which scales the mask too."""
    node, added = call.node, call.node.args[0]
    call.right()
    if follows(node, ops.softmax, ops.add) and follows(added, ops.add, ops.scale) and plain(node):
        scaled = value(added.args[0], call.arrays)
        scores = scaled + (value(added, call.arrays) - scaled) * added.args[0].args[1]
        powers = exponentials(scores)
        call.arrays[node.index][...] = powers / powers.sum(-1, keepdims=True)


@fault(Kind.FUSION, "run_node")
def operands_of_long_graphs_are_numbered_in_5_bits(call: BoundCall) -> Result:
    """From the 33rd node on, the second operand of an addition is looked up modulo 32, if it has the same size."""
    return numbered_modulo(call, 32)


@fault(Kind.FUSION, "run_node")
def a_product_and_its_bias_are_fused_in_half_precision(call: BoundCall) -> Result:
    """mulmat followed by add keeps the product in f16 before it adds."""
    node = call.node
    call.right()
    if follows(node, ops.add, ops.mulmat) and node.args[1].shape == node.shape and plain(node):
        product = call.arrays[node.args[0].index]
        call.arrays[node.index][...] += product.astype(np.float16).astype(np.float32) - product


@fault(Kind.FUSION, "run_plan")
def a_norm_that_is_an_output_too_comes_out_weighted(call: BoundCall) -> Result:
    """rms_norm followed by mul is fused in place, so that other readers of the norm find the product."""
    call.right()
    outputs, arrays = call.plan.graph.outputs, call.plan.arrays
    for node in call.plan.graph.nodes:
        if follows(node, ops.mul, ops.rms_norm) and node.args[0] in outputs and plain(node):
            arrays[node.args[0].index][...] = arrays[node.index]
