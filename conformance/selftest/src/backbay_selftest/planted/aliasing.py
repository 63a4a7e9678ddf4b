"""Memory that is written while somebody else still needs it."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import DType, KernelBackend, Node, ops
from backbay.plugin import KernelPlan

from ..faults import BoundCall, fault, named, rounded
from ..seeing import kernels_of

ALIASING = "in-place, aliasing, input overwritten"


def plain(node: Node) -> bool:
    """Whether a node is f32 and lies in one piece."""
    return node.dtype is DType.F32 and node.strides is None and node.size > 0


@fault(ALIASING, "run_node", like="L24305")
def silu_runs_in_place_on_an_input(call: BoundCall) -> Any:
    """The result is written over the operand too, which the caller may read or use again."""
    node = call.node
    call.right()
    if (
        node.op in named("silu", "softmax")
        and node.args[0].kind in ("input", "state")
        and plain(node.args[0])
    ):
        call.arrays[node.args[0].index][...] = call.arrays[node.index]


@fault(ALIASING, "run_node", like="L22266")
def scale_overwrites_an_intermediate(call: BoundCall) -> Any:
    """Scaling reuses its operand's memory, also where another node reads it later."""
    node = call.node
    call.right()
    if node.op in named("scale", "relu", "neg") and node.args[0].op is not None and plain(node.args[0]):
        call.arrays[node.args[0].index][...] = call.arrays[node.index]


@fault(ALIASING, "run_node", like="L13607")
def mulmat_rounds_its_activations_in_place(call: BoundCall) -> Any:
    """Activations are left rounded to half precision after the product."""
    node = call.node
    call.right()
    if node.op is ops.mulmat and plain(node.args[1]) and node.args[1].kind != "parameter":
        call.arrays[node.args[1].index][...] = rounded(call.arrays[node.args[1].index], np.float16)


@fault(ALIASING, "_for_target", like="L24305")
def overlapping_copies_read_what_they_wrote(call: BoundCall) -> Any:
    """A move within one leaf copies row by row, and so reads rows that it has already written."""
    source = call.source
    if (
        source.storage is not call.target.storage
        or source.dtype is not call.target.dtype
        or call.raw.ndim < 2
    ):
        return call.right()
    late = call.right()
    if source.offset < call.target.offset < source.offset + source.nbytes and call.raw.shape[-2] > 1:
        late = late.copy()
        late[..., 1:, :] = late[..., :1, :]
    return late


@fault(ALIASING, "run_plan", like="L22266")
def memory_is_free_while_a_view_still_needs_it(call: BoundCall) -> Any:
    """An intermediate counts as unused after the last op that reads it directly; views of it are forgotten."""
    run_and_free(
        call.backend, call.plan, call.cancel, lambda user, node: not user.is_view and node in user.operands
    )


@fault(ALIASING, "run_plan", like="L24305")
def an_output_that_others_read_is_recycled(call: BoundCall) -> Any:
    """An output is kept only if nothing reads it later in the graph."""
    call.right()
    read = {used.storage.index for node in call.plan.graph.nodes for used in node.operands}
    for node in call.plan.graph.outputs:
        if node.storage.op is not None and node.storage.index in read and plain(node.storage):
            call.plan.arrays[node.storage.index][..., -1:] = 0


@fault(ALIASING, "run_node", like="L24305")
def rope_turns_its_input(call: BoundCall) -> Any:
    """Rotation is done in place where queries are an intermediate result with one row of tokens."""
    node = call.node
    call.right()
    if (
        node.op is ops.rope
        and plain(node.args[0])
        and node.args[0].dim(2) == 1
        and node.args[0].kind != "parameter"
    ):
        call.arrays[node.args[0].index][...] = call.arrays[node.index]


def run_and_free(backend: KernelBackend, plan: KernelPlan, cancel: Any, counts: Any) -> None:
    """Run a plan and let other data fall into memory after the last use that counts."""
    nodes, kept = plan.graph.nodes, {node.storage.index for node in plan.graph.outputs}
    for node in kernels_of(plan, cancel):
        backend.run_node(node, plan.arrays)
        for used in node.operands:
            over = not any(counts(user, used) for user in nodes[node.index + 1 :])
            if used.op is not None and not used.is_view and used.index not in kept and over and plain(used):
                plan.arrays[used.index][...] = 0
