"""Faults of an optimizer: each op is right alone, and wrong where it is merged with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import DType, Node, ops
from backbay.plugin import decode

from ...fault import (
    AnyOp,
    FaultKind,
    InterceptedCall,
    Result,
    fault,
    kernels_of,
    named,
    numbered_modulo,
    plain,
)
from ...fused import Array, exponentials


def value(node: Node, arrays: Sequence[Array]) -> Array:
    return decode(arrays[node.index], node.dtype).astype(np.float64)


def follows(node: Node, op: AnyOp, before: AnyOp) -> bool:
    """Whether a node applies `op` to the result of `before`."""
    return node.op is op and node.args[0].op is before


@fault(FaultKind.FUSION, "run_node")
def a_norm_and_its_weight_are_fused_without_eps(call: InterceptedCall) -> Result:
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


@fault(FaultKind.FUSION, "run_node")
def a_chain_of_additions_loses_its_middle(call: InterceptedCall) -> Result:
    """Three additions in a row are fused, and the second addition's second operand is left out."""
    node = call.node
    call.right()
    if follows(node, ops.add, ops.add) and follows(node.args[0], ops.add, ops.add) and plain(node):
        lost = node.args[0].args[1]
        if lost.shape == node.shape:
            call.arrays[node.index][...] -= value(lost, call.arrays).astype(np.float32)


@fault(FaultKind.FUSION, "run_node")
def a_gate_is_applied_to_the_wrong_half(call: InterceptedCall) -> Result:
    """silu followed by mul becomes a gated kernel, with gate and value exchanged."""
    node = call.node
    call.right()
    if follows(node, ops.mul, ops.silu) and node.args[1].shape == node.shape and plain(node):
        gate, up = value(node.args[0].args[0], call.arrays), value(node.args[1], call.arrays)
        call.arrays[node.index][...] = gate * up / (1 + np.exp(-up))


@fault(FaultKind.FUSION, "run_node")
def equal_nodes_are_merged_by_their_operands_alone(call: InterceptedCall) -> Result:
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


@fault(FaultKind.FUSION, "run_plan")
def writes_that_nobody_reads_are_dropped(call: InterceptedCall) -> Result:
    """Dead code elimination drops a write into a cache whose result has no reader."""
    read = {o.index for n in call.plan.graph.nodes for o in n.operands}
    for node in kernels_of(call.plan, call.cancel):
        if node.op is None or node.op.writes is None or node.index in read:
            call.backend.run_node(node, call.plan.arrays)


@fault(FaultKind.FUSION, "run_plan")
def a_read_before_a_write_is_shared_with_one_after(call: InterceptedCall) -> Result:
    """Two reads of the same range of a leaf are merged, despite a write between them."""
    seen: dict[object, Array] = {}
    for node in kernels_of(call.plan, call.cancel):
        call.backend.run_node(node, call.plan.arrays)
        source = node.args[0]
        if node.op is ops.contiguous and source.storage.leaf is not None and node.strides is None:
            key = (source.storage.index, source.offset, source.shape, source.strides, node.shape)
            call.plan.arrays[node.index][...] = seen.setdefault(key, call.plan.arrays[node.index].copy())


@fault(FaultKind.FUSION, "run_node")
def scaling_is_lost_before_a_softmax(call: InterceptedCall) -> Result:
    """scale, add and softmax run as one kernel, which scales the mask too."""
    node, added = call.node, call.node.args[0]
    call.right()
    if follows(node, ops.softmax, ops.add) and follows(added, ops.add, ops.scale) and plain(node):
        scaled = value(added.args[0], call.arrays)
        scores = scaled + (value(added, call.arrays) - scaled) * added.args[0].args[1]
        powers = exponentials(scores)
        call.arrays[node.index][...] = powers / powers.sum(-1, keepdims=True)


@fault(FaultKind.FUSION, "run_node")
def operands_of_long_graphs_are_numbered_in_5_bits(call: InterceptedCall) -> Result:
    """From the 33rd node on, the second operand of an addition is looked up modulo 32, if it has the same size."""
    return numbered_modulo(call, 32)


@fault(FaultKind.FUSION, "run_node")
def a_product_and_its_bias_are_fused_in_half_precision(call: InterceptedCall) -> Result:
    """mulmat followed by add keeps the product in f16 before it adds."""
    node = call.node
    call.right()
    if follows(node, ops.add, ops.mulmat) and node.args[1].shape == node.shape and plain(node):
        product = call.arrays[node.args[0].index]
        call.arrays[node.index][...] += product.astype(np.float16).astype(np.float32) - product


@fault(FaultKind.FUSION, "run_plan")
def a_norm_that_is_an_output_too_comes_out_weighted(call: InterceptedCall) -> Result:
    """rms_norm followed by mul is fused in place, so that other readers of the norm find the product."""
    call.right()
    outputs, arrays = call.plan.graph.outputs, call.plan.arrays
    for node in call.plan.graph.nodes:
        if follows(node, ops.mul, ops.rms_norm) and node.args[0] in outputs and plain(node):
            arrays[node.args[0].index][...] = arrays[node.index]


IN_PLACE = named("add", "mul", "sub", "scale", "neg", "silu", "softmax", "rms_norm", "layer_norm", "clamp")


def readers(nodes: list[Node], node: Node) -> list[Node]:
    """The nodes that read a node or a view of it."""
    return [user for user in nodes if any(operand.storage is node for operand in user.operands)]


@fault(FaultKind.ALIASING, "run_plan")
def views_do_not_keep_their_tensor_from_its_last_reader(call: InterceptedCall) -> Result:
    """An op runs in place if nothing reads its operand itself later; a view of the operand may be read later."""
    plan = call.plan
    nodes, arrays = plan.graph.nodes, plan.arrays
    kept = {node.storage.index for node in plan.graph.outputs}
    last = {
        used.index: node.index for node in nodes if node.op and not node.op.view for used in node.operands
    }
    for node in kernels_of(plan, call.cancel):
        call.backend.run_node(node, arrays)
        x = node.args[0]
        free = x.op is not None and not x.is_view and x.index not in kept and last[x.index] == node.index
        if node.op in IN_PLACE and free and plain(x) and plain(node):
            arrays[x.index][...] = arrays[node.index].reshape(arrays[x.index].shape)


def leaves_out(name: str, first: AnyOp, second: AnyOp) -> None:
    """Register a fault: two ops run as one kernel; the result of the first is an output, too, and is not written."""

    def wrong(call: InterceptedCall) -> None:
        call.right()
        nodes = call.plan.graph.nodes
        for node in call.plan.graph.outputs:
            users = readers(nodes, node) if node.op is first else []
            if len(users) == 1 and follows(users[0], second, first):
                call.plan.arrays[node.index][...] = 0

    fault(FaultKind.FUSION, "run_plan", name=name)(wrong)


leaves_out("the_factor_of_a_merged_sum_is_never_stored", ops.mul, ops.add)
leaves_out("a_gate_in_a_merged_product_is_never_stored", ops.silu, ops.mul)
leaves_out("scaled_scores_of_a_merged_softmax_are_never_stored", ops.scale, ops.softmax)
leaves_out("a_product_with_a_merged_bias_is_never_stored", ops.mulmat, ops.add)


@fault(FaultKind.FUSION, "run_plan")
def casts_to_a_narrow_type_and_back_are_left_out(call: InterceptedCall) -> Result:
    """A pair of casts is taken for a copy, whatever the narrow type loses."""
    held: dict[int, Array] = {}
    arrays = call.plan.arrays
    for node in kernels_of(call.plan, call.cancel):
        call.backend.run_node(node, arrays)
        if node.op is not ops.cast:
            continue
        x = node.args[0]
        if x.dtype is DType.F32 and node.dtype in (DType.F16, DType.BF16) and x.op is not None:
            held[node.index] = np.array(arrays[x.index])
        elif x.index in held and node.dtype is DType.F32:
            arrays[node.index][...] = held[x.index].reshape(arrays[node.index].shape)


@fault(FaultKind.FUSION, "run_node")
def a_tensor_less_itself_is_zero(call: InterceptedCall) -> Result:
    """x - x is replaced by zeros, also where x is infinite or NaN."""
    args = call.node.args
    call.right()
    if call.node.op is ops.sub and args[0] is args[1]:
        call.arrays[call.node.index][...] = 0


@fault(FaultKind.FUSION, "run_node")
def a_merged_bias_is_taken_for_one_of_columns(call: InterceptedCall) -> Result:
    """A product and a sum run as one kernel, which reads one number for each row as one for each column."""
    node = call.node
    call.right()
    if follows(node, ops.add, ops.mulmat) and plain(node) and node.rank == 2:
        bias = node.args[1]
        if bias.shape == (1, node.dim(1)) and node.dim(0) <= node.dim(1) and plain(bias):
            right, wrong = call.arrays[bias.index], call.arrays[bias.index].reshape(-1)[: node.dim(0)]
            call.arrays[node.index][...] += wrong - right


@fault(FaultKind.ALIASING, "compile")
def places_are_those_of_the_last_graph_with_as_many_nodes(call: InterceptedCall) -> Result:
    """A graph gets the places of an earlier one with the same ops and sizes, whatever its nodes read."""
    plan = call.right()
    key = tuple((node.op, node.dtype, node.shape) for node in call.graph.nodes)
    first = vars(call.backend).setdefault("places", {}).setdefault(key, dict(plan._slots))
    fits = first.keys() == plan._slots.keys() and max(first.values(), default=0) < len(plan._buffers)
    if not fits or not plan.arrays:
        return plan
    if all(plan._buffers[slot].nbytes >= call.graph.nodes[index].nbytes for index, slot in first.items()):
        plan._slots = first
        plan._storages.clear()
        plan.arrays = [
            call.backend.resolve_view(node, plan._storage(node.storage)) for node in call.graph.nodes
        ]
    return plan


@fault(FaultKind.FUSION, "run_plan")
def leaves_of_other_contexts_count_as_constants(call: InterceptedCall) -> Result:
    """Ops that read nothing but leaves of caches are computed once, when the plan runs for the first time."""
    nodes, arrays = call.plan.graph.nodes, call.plan.arrays
    written = {node.storage.index for node in nodes if node.op is not None and node.op.writes is not None}
    folded: dict[int, Any] = vars(call.plan).setdefault("folded", {})
    constant = {node.index for node in nodes if node.kind == "state" and node.index not in written}
    for node in nodes:
        pure = node.op is not None and node.op.writes is None and node.operands
        if pure and all(used.index in constant for used in node.operands):
            constant.add(node.index)
    for node in kernels_of(call.plan, call.cancel):
        if node.index in folded:
            arrays[node.index][...] = folded[node.index]
            continue
        call.backend.run_node(node, arrays)
        if node.index in constant:
            folded[node.index] = arrays[node.index].copy()
