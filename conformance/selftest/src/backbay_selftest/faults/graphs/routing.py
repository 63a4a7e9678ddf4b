"""Ids that a graph finds: sorted, kept, reordered or read too early."""

from __future__ import annotations

import numpy as np

from backbay import Node, ops

from ...fault import AnyOp, FaultKind, InterceptedCall, Result, fault, looked, named
from ...fused import rank4

ROUTED = named("rows", "mulmat_id", "add_id", "set_rows")


def finder(node: Node) -> AnyOp | None:
    """The op that finds the ids which a `read_operand` call reads."""
    op = node.storage.op
    return op if op in (ops.top_k, ops.argsort) else None


def reads_found_ids(call: InterceptedCall) -> bool:
    return call.reader.op in ROUTED and finder(call.operand) is not None


@fault(FaultKind.STRIDES, "read_operand")
def ids_of_a_sort_are_read_in_one_piece(call: InterceptedCall) -> Result:
    """The first of each sorted row are a view with gaps, which is read as if it had none."""
    if not reads_found_ids(call) or not call.operand.strides:
        return call.right()
    return call.right(arrays=[
        looked(call.operand, call.arrays, None, None) if i == call.operand.index else array
        for i, array in enumerate(call.arrays)
    ])  # fmt: skip


@fault(FaultKind.RACES, "read_operand")
def ids_that_a_graph_finds_are_read_once(call: InterceptedCall) -> Result:
    """The host fetches the ids in the first run of a plan, and uses them in all later runs."""
    if not reads_found_ids(call):
        return call.right()
    kept = vars(call.backend).setdefault("ids", {})
    plan, ids = kept.get(call.operand.index, (None, None))
    if plan is not call.arrays:
        ids = np.array(call.right())
        kept[call.operand.index] = (call.arrays, ids)
    return ids


@fault(FaultKind.RACES, "read_operand")
def experts_are_those_of_the_token_before(call: InterceptedCall) -> Result:
    """The router runs on another queue; the last token's experts are still the ones of the token before."""
    y = call.right()
    if reads_found_ids(call) and call.reader.op is ops.mulmat_id and len(y) > 1:
        y = np.array(y)
        y[-1] = y[-2]
    return y


@fault(FaultKind.FUSION, "read_operand")
def a_fused_router_orders_experts_by_number(call: InterceptedCall) -> Result:
    """top_k followed by a product by experts is one kernel, which writes the products by rising expert."""
    fused = call.reader.op is ops.mulmat_id and finder(call.operand) is not None
    return np.sort(call.right(), -1) if fused else call.right()


@fault(FaultKind.FUSION, "run_node")
def shares_are_those_of_the_first_experts(call: InterceptedCall) -> Result:
    """The scores at the ids that a top_k of the scores has found are copied from the start of the row."""
    node = call.node
    call.right()
    ids = node.args[1] if node.op is ops.rows else None
    if ids is not None and ids.op is ops.top_k and ids.args[0].storage is node.args[0].storage:
        out, used = call.arrays[node.index], ids.dim(0)
        out[...] = call.arrays[node.args[0].index][..., :used, :].reshape(out.shape)


@fault(FaultKind.FUSION, "read_operand")
def a_scatter_by_a_permutation_becomes_a_gather(call: InterceptedCall) -> Result:
    """set_rows with the ids of an argsort is rewritten as rows, without inverting the order."""
    y = call.right()
    if call.reader.op is ops.set_rows and finder(call.operand) is ops.argsort:
        whole = y.shape[-1] == call.operand.storage.dim(0)
        return np.argsort(y, -1).astype(y.dtype) if whole else y
    return y


@fault(FaultKind.OVERFLOW, ops.mulmat_id)
def an_expert_serves_32_tokens_at_most(call: InterceptedCall) -> Result:
    """Tokens are grouped by expert; those past the 32nd of an expert get no result."""
    y, ids = call.right(), call.ids.reshape(-1, call.ids.shape[-1])
    flat = rank4(y)[0]
    for expert in range(int(ids.max(initial=-1)) + 1):
        for token, used in np.argwhere(ids == expert)[32:]:
            flat[token, used] = 0
    return y


@fault(FaultKind.OVERFLOW, "read_operand")
def found_experts_are_a_mask_of_64_bits(call: InterceptedCall) -> Result:
    """The router hands on its choice as the bits of a word, so that expert 64 is expert 0."""
    fused = call.reader.op in named("mulmat_id", "add_id") and finder(call.operand) is not None
    return call.right() % 64 if fused else call.right()


@fault(FaultKind.ORDER, "run_node")
def a_router_of_many_experts_takes_half_of_each_half(call: InterceptedCall) -> Result:
    """From 128 scores on, two groups of threads find k / 2 of their half each."""
    node = call.node
    call.right()
    n = node.args[0].dim(0) if node.op is ops.top_k else 0
    if n >= 128 and n % 2 == 0 and node.dim(0) % 2 == 0 and node.size:
        x, k = call.arrays[node.args[0].index].astype(np.float64), node.dim(0) // 2
        halves = [
            (-x[..., low : low + n // 2]).argsort(-1, kind="stable")[..., :k] + low for low in (0, n // 2)
        ]
        found = np.concatenate(halves, -1)
        order = (-np.take_along_axis(x, found, -1)).argsort(-1, kind="stable")
        call.arrays[node.index][...] = np.take_along_axis(found, order, -1)


@fault(FaultKind.STRIDES, ops.add_id)
def biases_of_several_experts_advance_with_the_token(call: InterceptedCall) -> Result:
    """Ids that lie in rows of more than they use are read as if the rows were as short as their use."""
    ids = call.ids
    if ids.ndim < 2 or ids.strides[-2] == ids.shape[-1] * ids.itemsize or ids.shape[-2] < 2:
        return call.right()
    short = np.lib.stride_tricks.as_strided(ids, ids.shape, (ids.shape[-1] * ids.itemsize, ids.itemsize))
    return call.right(ids=np.abs(short) % max(call.t2.shape[-2] if call.t2.ndim > 1 else 1, 1))
