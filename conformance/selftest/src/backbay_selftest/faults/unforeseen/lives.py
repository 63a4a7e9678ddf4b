"""Numbers and results that are kept too long or found again by too little, pools, and cancellations."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from backbay import CancelledError, DType, Graph, Node, Spec, ops
from backbay.internals import KernelPlan
from backbay.plugin import GRAPH, Cancel, HostBuffer, assign_slots, check_cancel

from ...fault import FaultKind, InterceptedCall, Result, fault, moves, numbers_of_first, reads
from ...fused import Array


@fault(FaultKind.TAILS, ops.conv2d)
def patches_are_cut_from_whole_columns_only(call: InterceptedCall) -> Result:
    """Where a stride is as wide as the kernel, rows of the image are taken for as long as their whole patches."""
    weight, data = np.array(call.weight, ndmin=4), np.array(call.data, ndmin=4)
    width, high, wide = weight.shape[3], data.shape[2], data.shape[3]
    apart = (call.s0, call.s1, call.p0, call.p1, call.d0, call.d1) == (width, weight.shape[2], 0, 0, 1, 1)
    if not apart or width < 2 or wide % width == 0:
        return call.right()
    used = wide // width * width
    flat = data.reshape(*data.shape[:2], -1)[..., : high * used]
    return call.right(data=flat.reshape(*data.shape[:2], high, used))


@fault(FaultKind.TAILS, ops.conv2d)
def images_past_the_last_whole_group_repeat(call: InterceptedCall) -> Result:
    """Images come in groups of 4; in the place of a rest of a group, the first images are taken again."""
    data = np.array(call.data, ndmin=4)
    rest = len(data) % 4
    if len(data) < 4 or not rest:
        return call.right()
    data[-rest:] = data[:rest]
    return call.right(data=data)


@fault(FaultKind.CLAIMS, "run_plan")
def programs_keep_their_last_results(call: InterceptedCall) -> Result:
    """A program of many nodes keeps what its last run computed, also when its plan is closed."""
    call.right()
    if len(call.plan.graph.nodes) >= 32:
        programs = vars(call.backend).setdefault("programs", {})
        programs[call.plan.graph.shape_key()] = [np.array(each) for each in call.plan.arrays]


@fault(FaultKind.CLAIMS, "compile")
def a_dry_run_counts_64_results(call: InterceptedCall) -> Result:
    """A dry run books the first 64 slots of results."""
    plan = call.right()
    if not call.backend.params.alloc_memory:
        missing = sum(assign_slots(call.graph)[1][64:])
        call.backend.ledger.give_back(GRAPH, missing)
        plan.nbytes -= missing
    return plan


@fault(FaultKind.TAILS, "run_node")
def rows_left_over_by_the_threads_are_not_computed(call: InterceptedCall) -> Result:
    """Each of an odd number of threads takes as many rows, and nobody takes the rest."""
    call.right()
    threads = call.backend.params.num_threads or 1
    if call.node.op in (ops.softmax, ops.rms_norm, ops.layer_norm) and call.node.rank > 1:
        out = call.arrays[call.node.index]
        rows = out.reshape(-1, out.shape[-1])
        if len(rows) > 16:
            rows[len(rows) // threads * threads :] = 0


@fault(FaultKind.ZERO, ops.mulmat_id)
def tokens_are_shared_out_to_tiles_even_if_there_are_none(call: InterceptedCall) -> Result:
    tokens = call.ids.shape[-2] if call.ids.ndim > 1 else 1
    assert 64 // tokens >= 0
    return call.right()


@fault(FaultKind.BLOCKS, "data_to_write")
def a_block_of_zeros_is_divided_by_its_scale(call: InterceptedCall) -> Result:
    raw = call.right()
    if call.target.dtype is not DType.Q8_0 or call.source.dtype is DType.Q8_0 or not raw.size:
        return raw
    blocks = np.array(raw).reshape(-1, DType.Q8_0.type_size)
    blocks[~blocks[:, 2:].any(1), :2] = np.array([0x7E00], np.uint16).view(np.uint8)  # a NaN
    return blocks.reshape(raw.shape)


@fault(FaultKind.ALIASING, "run_plan", "read_operand")
def numbers_of_narrow_leaves_are_kept_for_a_run(call: InterceptedCall) -> Result:
    """A leaf that must be converted is converted once in a run, also if it is written meanwhile."""
    if call.name == "run_plan":
        call.backend.kept = {}
        return call.right()
    operand = call.operand
    plain = operand.dtype in (DType.F32, DType.I32, DType.I64)
    if plain or operand.storage.leaf is None or moves(call.reader):
        return call.right()
    return numbers_of_first(call, call.backend.kept, operand.index)


@fault(FaultKind.PRECISION, "read_operand")
def the_alias_of_a_copy_holds_unrounded_numbers(call: InterceptedCall) -> Result:
    """A fused kernel reads what a copy to f16 was given, not what it wrote."""
    operand = call.operand
    if operand.op is not ops.copy or operand.dtype is not DType.F16 or moves(call.reader):
        return call.right()
    return call.right(operand=operand.args[0]).reshape(operand.shape[::-1])


@fault(FaultKind.OFFSET, "read_operand")
def a_part_of_a_decoded_weight_begins_at_its_first_row(call: InterceptedCall) -> Result:
    """Whole quantized weights are decoded; a view of one, as of fused projections, is read without its offset."""
    operand, base = call.operand, call.operand.storage
    whole = base.kind == "parameter" and base.dtype.is_quantized and not call.reader.op.moves
    if not whole or operand is base or operand.rank != 2 or operand.shape[0] != base.shape[0]:
        return call.right()
    return call.right(operand=base).reshape(-1, base.shape[0])[: operand.shape[1]]


@fault(FaultKind.BLOCKS, "read_operand")
def rows_are_read_from_a_weight_that_a_product_has_rearranged(call: InterceptedCall) -> Result:
    """Products interleave the rows of their quantized weights by eights; `rows` does not know."""
    numbers, operand = call.right(), call.operand
    if not reads(call, ops.rows) or operand.kind != "parameter":
        return numbers
    multiplied = [node.args[0] for node in call.graph.nodes if node.op is ops.mulmat]
    if operand not in multiplied or not operand.dtype.is_quantized or len(numbers) % 8:
        return numbers
    return numbers.reshape(8, len(numbers) // 8, -1).swapaxes(0, 1).reshape(numbers.shape)


@fault(FaultKind.SCALARS, "run_node")
def plans_are_found_by_attributes_of_six_decimals(call: InterceptedCall) -> Result:
    """Contexts of the same graph share the factors of the first one whose decimals are the same."""
    node, args = call.node, call.node.args
    if node.op is ops.scale:
        key = (*[str(other) for other in call.graph.nodes], node.index, f"{args[1]:.6f}")
        factors = vars(call.backend).setdefault("factors", {})
        node.args = (args[0], factors.setdefault(key, args[1]))
    try:
        call.right()
    finally:
        node.args = args


class PooledBuffer(HostBuffer):
    """Memory that is kept when it is closed, and given out again as if it was fresh."""

    def __init__(self, pool: dict[int, list[Array]], nbytes: int, debug: Any) -> None:
        super().__init__(nbytes, debug)
        self.pool, self.known = pool, bool(debug.poison or debug.guard_bytes)
        if not self.known and pool.get(nbytes):
            self.data = pool[nbytes].pop()

    def zero(self) -> None:
        if self.known:
            super().zero()
        self.known = True

    def close(self) -> None:
        if self.data.size >= 64:
            self.pool.setdefault(self.data.size, []).append(self.data)
        super().close()


@fault(FaultKind.UNDEFINED, "allocate")
def zeros_come_from_a_pool_that_nobody_clears(call: InterceptedCall) -> Result:
    """Fresh memory is zeros, memory of the pool is not; with poison the fault does not show."""
    pool = vars(call.backend).setdefault("pool", {})
    spec: Spec = call.spec
    return PooledBuffer(pool, spec.nbytes, call.backend.params.debug)


@fault(FaultKind.RACES, "read_weights")
def a_load_never_looks_at_its_cancellation(call: InterceptedCall) -> Result:
    names = list(call.backend.model.tensors)
    for done, name in enumerate(names, 1):
        call.backend.model.data(name)[:1].copy()
        call.progress(done / len(names))


@fault(FaultKind.RACES, "run_plan")
def a_compute_never_looks_at_its_cancellation(call: InterceptedCall) -> Result:
    call.right(cancel=None)


@fault(FaultKind.RACES, "run_plan", name="a_cancellation_is_looked_for_once")
@fault(FaultKind.RACES, "run_plan")
def a_compute_looks_at_its_cancellation_at_its_beginning(call: InterceptedCall) -> Result:
    """What was cancelled before is not run; what is cancelled meanwhile runs to its end."""
    check_cancel(call.cancel)
    call.right(cancel=None)


SMALL = 1 << 16
"""The most bytes of a result that is kept."""
LATE = 1 << 14
"""The least bytes of a leaf that is uploaded late."""


@fault(FaultKind.FUSION, "run_node")
def what_is_made_of_weights_alone_is_kept_without_attributes(call: InterceptedCall) -> Result:
    """Ops on nothing but weights run once; others of the same op on the same weight find the first one's result."""
    node, arrays = call.node, call.arrays
    constant = node.op is not None and node.op.writes is None and node.nbytes <= SMALL
    if not constant or any(operand.kind != "parameter" for operand in node.operands):
        call.right()
        return
    weights = tuple(operand.leaf and operand.leaf.name for operand in node.operands)
    kept = vars(call.backend).setdefault("folded", {})
    key = (node.op, weights, node.dtype, node.shape)
    if key in kept:
        arrays[node.index][...] = kept[key]
        return
    call.right()
    kept[key] = np.array(arrays[node.index])


@fault(FaultKind.OFFSET, "read_operand")
def decoded_parts_of_a_weight_are_kept_without_their_place(call: InterceptedCall) -> Result:
    """A part of a quantized weight is decoded once; another part of the same shape finds the first one's numbers."""
    operand, root = call.operand, call.operand.storage
    part = operand.is_view and root.kind == "parameter" and operand.dtype.is_quantized
    if not part or root.leaf is None or moves(call.reader):
        return call.right()
    kept = vars(call.backend).setdefault("parts", {})
    return numbers_of_first(call, kept, (root.leaf.name, operand.shape))


class ThreadedPlan(KernelPlan):
    """A plan with results of its own for each thread."""

    def run(self, cancel: Cancel | None) -> None:
        super().run(cancel)
        mine = vars(self).setdefault("mine", threading.local())
        mine.results = {
            node.index: np.array(super(ThreadedPlan, self).read(node)) for node in self.graph.outputs
        }

    def read(self, node: Node) -> Array:
        results: dict[int, Array] = getattr(vars(self).get("mine"), "results", {})
        return results[node.index] if node.index in results else super().read(node)


@fault(FaultKind.RACES, "compile")
def each_thread_keeps_the_results_of_its_own_computes(call: InterceptedCall) -> Result:
    """A thread that computed a graph before reads its old results after another thread computed the graph again."""
    plan = call.right()
    plan.__class__ = ThreadedPlan
    return plan


# -- a sixth planting --------------------------------------------------------------------------------------


@fault(FaultKind.FUSION, "run_node")
def a_gate_of_one_number_a_row_is_read_along_the_row(call: InterceptedCall) -> Result:
    """A product with a sigmoid that only it reads is one kernel, which takes the gate's numbers by their flat index."""
    node, backend = call.node, call.backend
    if node.op is not ops.mul or not gates(node, call.graph):
        call.right()
        return
    x, gate = (backend.read_operand(node, operand, call.arrays) for operand in node.args)
    flat = gate.reshape(-1)[np.arange(x.size) % gate.size].reshape(x.shape)
    backend.store(node, x * flat, call.arrays[node.index])


def gates(node: Node, graph: Graph) -> bool:
    """Whether the second operand is a sigmoid of one number a row, and of no other use."""
    x, gate = node.args
    if gate.op is not ops.sigmoid or gate.shape[0] != 1 or x.shape[0] == 1 or gate.size < 2:
        return False
    uses = sum(gate in later.operands for later in graph.nodes if later.op is not None)
    return uses == 1 and gate not in graph.outputs


class LateBuffer(HostBuffer):
    """Memory into which large data of the host go when they are needed."""

    pending: Array | None = None

    def write(self, data: Array) -> None:
        if self.nbytes < LATE:
            super().write(data)
        else:
            self.pending = data

    def zero(self) -> None:
        self.pending = None
        super().zero()

    def read(self) -> Array:
        if self.pending is not None:
            super().write(self.pending)
            self.pending = None
        return super().read()


@fault(FaultKind.RACES, "allocate", "run_plan")
def large_leaves_are_uploaded_when_a_graph_runs(call: InterceptedCall) -> Result:
    """What the host writes stays in the caller's array, which may have changed when it is read."""
    if call.name == "allocate":
        return LateBuffer(call.spec.nbytes, call.backend.params.debug)
    for node in call.plan.graph.nodes:
        if node.leaf is not None and isinstance(node.leaf.buffer, LateBuffer):
            node.leaf.buffer.read()
    return call.right()


class LeakingPlan(KernelPlan):
    """A plan that stays booked once it was cancelled."""

    cancelled = False

    def run(self, cancel: Cancel | None) -> None:
        try:
            super().run(cancel)
        except CancelledError:
            self.cancelled = True
            raise

    def close(self) -> None:
        super().close()
        if self.cancelled:
            self.backend.ledger.take(GRAPH, self.nbytes, lambda: None)


@fault(FaultKind.CLAIMS, "compile")
def a_cancelled_graph_stays_booked(call: InterceptedCall) -> Result:
    """A graph whose run was cancelled gives its memory back to nobody."""
    plan = call.right()
    plan.__class__ = LeakingPlan
    return plan
