"""Memory that is overwritten before its last reader."""

from __future__ import annotations

from backbay import Node, ops

from ...faults import BoundCall, Kind, Result, fault, float16, named
from ...misread_operands import kernels_of, plain


def overwrite_operand(call: BoundCall) -> None:
    """Write a node's result over its first operand, too."""
    call.arrays[call.node.args[0].index][...] = call.arrays[call.node.index]


@fault(Kind.ALIASING, "run_node")
def silu_runs_in_place_on_an_input(call: BoundCall) -> Result:
    """The result also overwrites the operand, which the caller may read or use again."""
    call.right()
    first = call.node.args[0]
    if call.node.op in named("silu", "softmax") and first.kind in ("input", "state") and plain(first):
        overwrite_operand(call)


@fault(Kind.ALIASING, "run_node")
def scale_overwrites_an_intermediate(call: BoundCall) -> Result:
    """Scaling reuses its operand's memory, also where another node reads it later."""
    call.right()
    first = call.node.args[0]
    if call.node.op in named("scale", "relu", "neg") and first.op is not None and plain(first):
        overwrite_operand(call)


@fault(Kind.ALIASING, "run_node")
def mulmat_rounds_its_activations_in_place(call: BoundCall) -> Result:
    """Activations stay rounded to half precision after the product."""
    call.right()
    if call.node.op is ops.mulmat and plain(x := call.node.args[1]) and x.kind != "parameter":
        call.arrays[x.index][...] = float16(call.arrays[x.index])


@fault(Kind.ALIASING, "data_to_write")
def overlapping_copies_read_what_they_wrote(call: BoundCall) -> Result:
    """A move within one leaf copies row by row, and reads rows that it has already overwritten."""
    late, source, target = call.right(), call.source, call.target
    moves = source.storage is target.storage and source.dtype is target.dtype and call.raw.ndim >= 2
    if moves and source.offset < target.offset < source.offset + source.nbytes and late.shape[-2] > 1:
        late = late.copy()
        late[..., 1:, :] = late[..., :1, :]
    return late


@fault(Kind.ALIASING, "run_plan")
def memory_is_free_while_a_view_still_needs_it(call: BoundCall) -> Result:
    """An intermediate counts as unused after the last op that reads it directly; views of it are forgotten."""
    nodes, arrays = call.plan.graph.nodes, call.plan.arrays
    kept = {node.storage.index for node in call.plan.graph.outputs}
    for node in kernels_of(call.plan, call.cancel):
        call.backend.run_node(node, arrays)
        for used in node.operands:
            later = any(not user.is_view and used in user.operands for user in nodes[node.index + 1 :])
            own = used.op is not None and not used.is_view and used.index not in kept
            if own and not later and plain(used):
                arrays[used.index][...] = 0


@fault(Kind.ALIASING, "run_plan")
def an_output_that_others_read_is_recycled(call: BoundCall) -> Result:
    """An output is kept only if nothing reads it later in the graph."""
    call.right()
    read = {used.storage.index for node in call.plan.graph.nodes for used in node.operands}
    for node in call.plan.graph.outputs:
        if node.storage.op is not None and node.storage.index in read and plain(node.storage):
            call.plan.arrays[node.storage.index][..., -1:] = 0


@fault(Kind.ALIASING, "run_node")
def rope_turns_its_input(call: BoundCall) -> Result:
    """Queries that are an intermediate result of one token are rotated in place."""
    call.right()
    first = call.node.args[0]
    if call.node.op is ops.rope and plain(first) and first.dim(2) == 1 and first.kind != "parameter":
        overwrite_operand(call)


@fault(Kind.ALIASING, "run_plan")
def memory_is_free_behind_three_views(call: BoundCall) -> Result:
    """The search for the last reader of a result looks through two views, and no further."""
    nodes, arrays = call.plan.graph.nodes, call.plan.arrays
    kept = {node.storage.index for node in call.plan.graph.outputs}
    reading = [node for node in nodes if node.op is not None and not node.op.view]
    last = {used.storage.index: node for node in reading for used in node.operands if views(used) < 3}
    for node in kernels_of(call.plan, call.cancel):
        call.backend.run_node(node, arrays)
        for root in {used.storage for used in node.operands}:
            own = root.op is not None and root.index not in kept and plain(root)
            if own and last.get(root.index) is node:
                arrays[root.index][...] = 0


def views(node: Node) -> int:
    """The length of the chain of views that a node ends."""
    count = 0
    while node.is_view:
        node, count = node.args[0], count + 1
    return count
