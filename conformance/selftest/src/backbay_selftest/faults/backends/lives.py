"""What a life leaves behind: reservations, cancelled runs, and many contexts at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from backbay import CancelledError, DType, Spec
from backbay.plugin import GRAPH, check_cancel

from ...fault import FaultKind, InterceptedCall, Result, fault, kernels_of, numbered_modulo


@fault(FaultKind.CLAIMS, "compile")
def a_plan_that_never_ran_is_not_given_back(call: InterceptedCall) -> Result:
    """The memory of a plan is freed with its first run's events, which a reserved plan never has."""
    plan = call.right()
    run, close = plan.run, plan.close

    def running(cancel: object) -> None:
        plan.ran = True
        run(cancel)

    def closing() -> None:
        if not hasattr(plan, "ran"):
            plan.nbytes = 0
        close()

    plan.run, plan.close = running, closing
    return plan


@fault(FaultKind.RACES, "run_plan")
def a_cancelled_run_is_continued_by_the_next(call: InterceptedCall) -> Result:
    """After a cancellation, the next run of a plan starts where the last one stopped."""
    plan, nodes = call.plan, [n for n in call.plan.graph.nodes if n.op is not None and not n.op.view]
    start = vars(plan).pop("stopped", 0)
    with np.errstate(all="ignore"):
        for at, node in enumerate(nodes[start:], start):
            try:
                check_cancel(call.cancel)
            except CancelledError:
                plan.stopped = at
                raise
            call.backend.run_node(node, plan.arrays)


@fault(FaultKind.RACES, "run_plan")
def uploads_are_skipped_after_a_cancellation(call: InterceptedCall) -> Result:
    """A cancelled run marks its inputs as uploaded; the next run computes with them again."""
    plan = call.plan
    inputs = [node for node in plan.graph.nodes if node.kind == "input" and node.size]
    kept = vars(plan).pop("uploaded", None)
    fresh = {node.index: plan.arrays[node.index].copy() for node in inputs}
    for index, old in (kept or {}).items():
        plan.arrays[index][...] = old
    try:
        call.right()
    except CancelledError:
        plan.uploaded = fresh
        raise
    finally:
        for index, new in fresh.items():
            plan.arrays[index][...] = new


@fault(FaultKind.CLAIMS, "compile")
def outputs_are_booked_as_if_they_took_turns(call: InterceptedCall) -> Result:
    """All outputs of a graph are booked as one buffer of the largest."""
    plan = call.right()
    own = {n.storage.index: n.nbytes for n in plan.graph.outputs if n.storage.leaf is None and not n.is_view}
    spared = min(sum(own.values()) - max(own.values(), default=0), plan.nbytes)
    call.backend.ledger.give_back(GRAPH, spared)
    plan.nbytes -= spared
    return plan


@fault(FaultKind.CLAIMS, "book_weights")
def weights_are_booked_with_the_first_layer(call: InterceptedCall) -> Result:
    call.right()
    sizes = call.backend.ledger._sizes
    for entry in [entry for entry in sizes if entry.kind == "weights" and entry.layer]:
        first = replace(entry, layer=0)
        sizes[first] = sizes.get(first, 0) + sizes.pop(entry)


@fault(FaultKind.ALIASING, "allocate")
def the_thirteenth_buffer_of_a_size_is_the_first(call: InterceptedCall) -> Result:
    """A pool hands out its buffers in turn, and has 12 of each size."""
    made = vars(call.backend).setdefault("pool", {}).setdefault((call.spec.nbytes, call.spec.dtype), [])
    turn = vars(call.backend).setdefault("handed", {})
    key = (call.spec.nbytes, call.spec.dtype)
    turn[key] = turn.get(key, -1) + 1
    if len(made) < 12 or call.spec.nbytes > 1 << 12:
        made.append(call.right())
        return made[-1]
    reused = made[turn[key] % 12]
    return reused if reused.data is not None and len(reused.data) else call.right()


@fault(FaultKind.OVERFLOW, "run_plan")
def nodes_past_the_4096th_are_not_run(call: InterceptedCall) -> Result:
    """A command list has room for 4096 commands."""
    nodes = list(kernels_of(call.plan, call.cancel))
    with np.errstate(all="ignore"):
        for node in nodes[:4096]:
            call.backend.run_node(node, call.plan.arrays)


@fault(FaultKind.OVERFLOW, "run_node")
def operands_are_numbered_in_12_bits(call: InterceptedCall) -> Result:
    """From node 4096 on, the second operand of an addition is looked up modulo 4096."""
    return numbered_modulo(call, 4096)


@fault(FaultKind.OVERFLOW, "run_plan")
def outputs_past_the_16th_are_not_fetched(call: InterceptedCall) -> Result:
    """A fetch list has 16 places; further outputs keep what they held."""
    outputs = [node for node in call.plan.graph.outputs if node.leaf is None and not node.is_view][16:]
    before = {node.index: call.plan.arrays[node.index].copy() for node in outputs}
    call.right()
    for index, old in before.items():
        call.plan.arrays[index][...] = old


SHARED: dict[tuple[int, str], Any] = {}
"""Scratch memory of all backends of a process."""


@fault(FaultKind.RACES, "allocate")
def backends_of_a_process_share_scratch_memory(call: InterceptedCall) -> Result:
    """Compute memory comes from a pool of the process, keyed by its size, without a lock or an owner."""
    spec: Spec = call.spec
    scratch = spec.dtype is DType.I8 and spec.nbytes >= 256
    key = (spec.nbytes, "scratch")
    made = SHARED.get(key) if scratch else None
    if made is None or getattr(made, "owner", None) is call.backend or len(made.data) < spec.nbytes:
        made = call.right()
        if scratch:
            made.owner = call.backend
            SHARED[key] = made
    return made
