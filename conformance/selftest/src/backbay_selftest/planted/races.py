"""What a missing barrier or a stale copy leaves behind, made repeatable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import DType, KernelBackend, Node, ops
from backbay.plugin import Bytes, KernelPlan

from ..faults import Array, Kernel, Right, fault, named
from ..seeing import kernels_of

RACES = "races, missing synchronisation"


def leaves(plan: KernelPlan) -> list[Node]:
    """The leaves that only the host writes."""
    return [node for node in plan.graph.nodes if node.kind == "input" and node.size]


@fault(RACES, "run_plan", like="L20084")
def a_run_reads_what_the_leaves_held_before(right: Right, _: KernelBackend, plan: Any, cancel: Any) -> None:
    """Uploads are not waited for: a second run of a plan still sees the inputs of the first."""
    last = plan.__dict__.setdefault("seen", {})
    now = {node.index: plan.arrays[node.index].copy() for node in leaves(plan)}
    for index, old in last.items():
        plan.arrays[index][...] = old
    right(plan, cancel)
    for index, new in now.items():
        plan.arrays[index][...] = new
    plan.seen = now


@fault(RACES, "run_plan", like="L24360")
def a_plan_is_not_run_again_for_the_same_first_bytes(
    right: Right, _: KernelBackend, plan: Any, cancel: Any
) -> None:
    """Whether inputs changed is told from their first 64 bytes; if not, the last results stand."""
    key = [bytes(plan.arrays[node.index].reshape(-1)[:16].tobytes()[:64]) for node in leaves(plan)]
    writes = any(node.op is not None and node.op.writes is not None for node in plan.graph.nodes)
    if writes or plan.__dict__.get("key") != key:
        right(plan, cancel)
    plan.key = key


@fault(RACES, "run_node", like="L20084")
def every_third_sum_misses_its_last_part(
    right: Right, backend: Any, node: Node, arrays: Sequence[Array]
) -> None:
    """The last warp of a reduction is sometimes read before it is done."""
    right(node, arrays)
    if node.op in named("sum_rows", "mean", "mulmat", "softmax") and arrays[node.index].size:
        backend.turn = getattr(backend, "turn", 0) + 1
        if backend.turn % 3 == 0:
            arrays[node.index][..., -1] *= np.float32(0.5)


@fault(RACES, "run_plan", like="L20084")
def reads_of_a_cache_do_not_wait_for_its_writes(
    right: Right, backend: KernelBackend, plan: Any, cancel: Any
) -> None:
    """What a graph writes into a leaf is only there after all of its reads."""
    written = {n.storage.index for n in plan.graph.nodes if n.op is not None and n.op.writes is not None}
    late = [n for n in plan.graph.nodes if n.op is not None and n.op.writes is not None]
    if not written:
        right(plan, cancel)
        return
    first = [node for node in kernels_of(plan, cancel) if node not in late]
    with np.errstate(all="ignore"):
        for node in (*first, *late):
            backend.run_node(node, plan.arrays)


@fault(RACES, like="L24360")
def contexts_share_their_compute_memory(right: type[KernelBackend]) -> type[KernelBackend]:
    """All plans of a backend use one arena, so computing in one context changes the results of another."""

    class Shared(right):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self.arena: dict[tuple[int, DType], Bytes] = {}

        def compile(self, graph: Any) -> KernelPlan:
            plan: Any = super().compile(graph)
            read, run, arena = plan.read, plan.run, self.arena

            def shared(node: Node) -> Bytes:
                newest = arena.get((node.storage.nbytes, node.dtype))
                own: Bytes = read(node)
                return own if newest is None or node.leaf is not None or node.is_view else newest

            def remembering(cancel: Any) -> None:
                run(cancel)
                for node in plan.graph.outputs:
                    if node.leaf is None and not node.is_view:
                        arena[node.storage.nbytes, node.dtype] = read(node).copy()

            plan.read, plan.run = shared, remembering
            made: KernelPlan = plan
            return made

    return Shared


@fault(RACES, "read_operand", like="L24360")
def rows_written_are_seen_one_step_late(
    right: Kernel, backend: Any, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """A gather after set_rows in one graph reads the row that was written last as it was before."""
    if reader.op is ops.set_rows and operand is reader.args[0]:
        backend.before = (operand.storage.index, arrays[operand.index].copy(), arrays)
    y: Array = right(reader, operand, arrays)
    before = getattr(backend, "before", None)
    if before is None or before[0] != operand.storage.index or before[2] is not arrays:
        return y
    late = (
        reader.op in named("rows", "mulmat", "mulmat_full_prec", "contiguous") and operand.dtype is DType.F32
    )
    if late and y.shape == before[1].shape:
        y = np.array(y)
        y[..., -1, :] = before[1][..., -1, :]
    return y


@fault(RACES, "run_plan", like="L24360")
def the_first_of_two_outputs_is_read_too_early(
    right: Right, _: KernelBackend, plan: Any, cancel: Any
) -> None:
    """With several outputs, the first one is what the run before left."""
    first = plan.graph.outputs[0] if len(plan.graph.outputs) > 1 else None
    right(plan, cancel)
    if first is None or first.is_view or first.leaf is not None:
        return
    fresh = plan.arrays[first.index].copy()
    if "older" in plan.__dict__:
        plan.arrays[first.index][...] = plan.older
    plan.older = fresh


@fault(RACES, "run_node", like="L20084")
def sums_are_added_in_an_order_of_chance(
    right: Right, backend: Any, node: Node, arrays: Sequence[Array]
) -> None:
    """Atomic additions round differently from run to run, and the backend calls itself deterministic."""
    right(node, arrays)
    if node.op in named("mulmat", "sum_rows") and node.dtype is DType.F32 and arrays[node.index].size:
        backend.turn = getattr(backend, "turn", 0) + 1
        if backend.turn % 2:
            out = arrays[node.index]
            out[...] = np.nextafter(out, np.float32(np.inf))


@fault(RACES, ops.set_rows, like="L24360")
def rows_that_are_written_twice_add_up(right: Kernel, x: Array, src: Array, ids: Array) -> Array:
    """Writes are atomic additions to cleared rows, so that a repeated id keeps a sum instead of one of the rows."""
    y = right(x, src, ids)
    if src.ndim == 2 and ids.ndim == 1 and y.dtype == np.float32:
        for row in np.flatnonzero(np.bincount(ids, minlength=1) > 1):
            y[..., row, :] = src[ids == row].sum(0)
    return y
