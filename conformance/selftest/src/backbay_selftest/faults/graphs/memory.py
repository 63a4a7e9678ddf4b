"""Memory that is overwritten before its last reader, missing barriers and stale copies, made repeatable."""

from __future__ import annotations

import numpy as np

from backbay import DType, Node, ops
from backbay.internals import KernelPlan
from backbay.plugin import Cancel

from ...fault import FaultKind, InterceptedCall, Result, fault, float16, kernels_of, named, plain


def overwrite_operand(call: InterceptedCall) -> None:
    """Write a node's result over its first operand, too."""
    call.arrays[call.node.args[0].index][...] = call.arrays[call.node.index]


@fault(FaultKind.ALIASING, "run_node")
def silu_runs_in_place_on_an_input(call: InterceptedCall) -> Result:
    """The result also overwrites the operand, which the caller may read or use again."""
    call.right()
    first = call.node.args[0]
    if call.node.op in named("silu", "softmax") and first.kind in ("input", "state") and plain(first):
        overwrite_operand(call)


@fault(FaultKind.ALIASING, "run_node")
def scale_overwrites_an_intermediate(call: InterceptedCall) -> Result:
    """Scaling reuses its operand's memory, also where another node reads it later."""
    call.right()
    first = call.node.args[0]
    if call.node.op in named("scale", "relu", "neg") and first.op is not None and plain(first):
        overwrite_operand(call)


@fault(FaultKind.ALIASING, "run_node")
def mulmat_rounds_its_activations_in_place(call: InterceptedCall) -> Result:
    """Activations stay rounded to half precision after the product."""
    call.right()
    if call.node.op is ops.mulmat and plain(x := call.node.args[1]) and x.kind != "parameter":
        call.arrays[x.index][...] = float16(call.arrays[x.index])


@fault(FaultKind.ALIASING, "data_to_write")
def overlapping_copies_read_what_they_wrote(call: InterceptedCall) -> Result:
    """A move within one leaf copies row by row, and reads rows that it has already overwritten."""
    late, source, target = call.right(), call.source, call.target
    moves = source.storage is target.storage and source.dtype is target.dtype and call.raw.ndim >= 2
    if moves and source.offset < target.offset < source.offset + source.nbytes and late.shape[-2] > 1:
        late = late.copy()
        late[..., 1:, :] = late[..., :1, :]
    return late


@fault(FaultKind.ALIASING, "run_plan")
def memory_is_free_while_a_view_still_needs_it(call: InterceptedCall) -> Result:
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


@fault(FaultKind.ALIASING, "run_plan")
def an_output_that_others_read_is_recycled(call: InterceptedCall) -> Result:
    """An output is kept only if nothing reads it later in the graph."""
    call.right()
    read = {used.storage.index for node in call.plan.graph.nodes for used in node.operands}
    for node in call.plan.graph.outputs:
        if node.storage.op is not None and node.storage.index in read and plain(node.storage):
            call.plan.arrays[node.storage.index][..., -1:] = 0


@fault(FaultKind.ALIASING, "run_node")
def rope_turns_its_input(call: InterceptedCall) -> Result:
    """Queries that are an intermediate result of one token are rotated in place."""
    call.right()
    first = call.node.args[0]
    if call.node.op is ops.rope and plain(first) and first.dim(2) == 1 and first.kind != "parameter":
        overwrite_operand(call)


@fault(FaultKind.ALIASING, "run_plan")
def memory_is_free_behind_three_views(call: InterceptedCall) -> Result:
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


def leaves(plan: KernelPlan) -> list[Node]:
    """The nonempty leaves that only the host writes."""
    return [node for node in plan.graph.nodes if node.kind == "input" and node.size]


def turn(call: InterceptedCall) -> int:
    """The number of a fault's chances to show, this one included."""
    call.backend.turn = getattr(call.backend, "turn", 0) + 1
    return int(call.backend.turn)


@fault(FaultKind.RACES, "run_plan")
def a_run_reads_what_the_leaves_held_before(call: InterceptedCall) -> Result:
    """A run does not wait for uploads, and sees the inputs of the run before it."""
    plan = call.plan
    last = plan.__dict__.setdefault("seen", {})
    now = {node.index: plan.arrays[node.index].copy() for node in leaves(plan)}
    for index, old in last.items():
        plan.arrays[index][...] = old
    call.right()
    for index, new in now.items():
        plan.arrays[index][...] = new
    plan.seen = now


@fault(FaultKind.RACES, "run_plan")
def a_plan_is_not_run_again_for_the_same_first_bytes(call: InterceptedCall) -> Result:
    """Results are kept while the first 64 bytes of each input stay equal."""
    plan = call.plan
    key = [bytes(plan.arrays[node.index].reshape(-1)[:16].tobytes()[:64]) for node in leaves(plan)]
    writes = any(node.op is not None and node.op.writes is not None for node in plan.graph.nodes)
    if writes or plan.__dict__.get("key") != key:
        call.right()
    plan.key = key


@fault(FaultKind.RACES, "run_node")
def every_third_sum_misses_its_last_part(call: InterceptedCall) -> Result:
    """A reduction is sometimes read before its last warp is done."""
    call.right()
    out = call.arrays[call.node.index]
    if call.node.op in named("sum_rows", "mean", "mulmat", "softmax") and out.size and turn(call) % 3 == 0:
        out[..., -1] *= np.float32(0.5)


@fault(FaultKind.RACES, "run_plan")
def reads_of_a_cache_do_not_wait_for_its_writes(call: InterceptedCall) -> Result:
    """A graph's writes into a leaf happen after all of its reads."""
    nodes = list(kernels_of(call.plan, call.cancel))
    with np.errstate(all="ignore"):
        for node in sorted(nodes, key=lambda node: node.op is not None and node.op.writes is not None):
            call.backend.run_node(node, call.plan.arrays)


@fault(FaultKind.RACES, "compile")
def contexts_share_their_compute_memory(call: InterceptedCall) -> Result:
    """All plans of a backend use one arena, so computing in one context changes the results of another."""
    plan, arena = call.right(), vars(call.backend).setdefault("arena", {})
    read, run = plan.read, plan.run

    def shared(node: Node) -> Result:
        newest, own = arena.get((node.storage.nbytes, node.dtype)), read(node)
        return own if newest is None or node.leaf is not None or node.is_view else newest

    def remembering(cancel: Cancel | None) -> None:
        run(cancel)
        for node in plan.graph.outputs:
            if node.leaf is None and not node.is_view:
                arena[node.storage.nbytes, node.dtype] = read(node).copy()

    plan.read, plan.run = shared, remembering
    return plan


@fault(FaultKind.RACES, "read_operand")
def rows_written_are_seen_one_step_late(call: InterceptedCall) -> Result:
    """A gather after set_rows in one graph reads the old content of the last row."""
    operand, reader = call.operand, call.reader
    if reader.op is ops.set_rows and operand is reader.args[0]:
        call.backend.before = (operand.storage.index, call.arrays[operand.index].copy(), call.arrays)
    y = call.right()
    index, old, arrays = getattr(call.backend, "before", (None, y, None))
    if index != operand.storage.index or arrays is not call.arrays or y.shape != old.shape:
        return y
    if reader.op in named("rows", "mulmat", "mulmat_full_prec", "contiguous") and operand.dtype is DType.F32:
        y = np.array(y)
        y[..., -1, :] = old[..., -1, :]
    return y


@fault(FaultKind.RACES, "run_plan")
def the_first_of_two_outputs_is_read_too_early(call: InterceptedCall) -> Result:
    """With several outputs, the first output is that of the run before."""
    plan = call.plan
    first = plan.graph.outputs[0] if len(plan.graph.outputs) > 1 else None
    call.right()
    if first is None or first.is_view or first.leaf is not None:
        return
    fresh = plan.arrays[first.index].copy()
    if "older" in plan.__dict__:
        plan.arrays[first.index][...] = plan.older
    plan.older = fresh


@fault(FaultKind.RACES, "run_node")
def sums_are_added_in_an_order_of_chance(call: InterceptedCall) -> Result:
    """Atomic additions round differently from run to run, and the backend calls itself deterministic."""
    call.right()
    out = call.arrays[call.node.index]
    summed = call.node.op in named("mulmat", "sum_rows") and out.dtype == np.float32 and out.size
    if summed and turn(call) % 2:
        out[...] = np.nextafter(out, np.float32(np.inf))


@fault(FaultKind.RACES, ops.set_rows)
def rows_that_are_written_twice_add_up(call: InterceptedCall) -> Result:
    """Writes are atomic additions to cleared rows, so that a repeated id sums its rows."""
    y = call.right()
    if call.src.ndim == 2 and call.ids.ndim == 1 and y.dtype == np.float32:
        for row in np.flatnonzero(np.bincount(call.ids, minlength=1) > 1):
            y[..., row, :] = call.src[call.ids == row].sum(0)
    return y
