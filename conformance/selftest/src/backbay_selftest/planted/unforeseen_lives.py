"""Faults planted without knowledge of the suite a second time: kept numbers, weights read in part, and lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import DType, KernelBackend, Node, Spec, ops
from backbay.internals import KernelPlan
from backbay.plugin import Cancel, HostBuffer, check_cancel

from ..faults import BoundCall, Kind, Result, fault
from ..fused import Array
from .unforeseen import running


@fault(Kind.TAILS, ops.conv2d)
def patches_are_cut_from_whole_columns_only(call: BoundCall) -> Result:
    """Where a stride is as wide as the kernel, rows of the image are taken for as long as their whole patches."""
    weight, data = np.array(call.weight, ndmin=4), np.array(call.data, ndmin=4)
    width, high, wide = weight.shape[3], data.shape[2], data.shape[3]
    apart = (call.s0, call.s1, call.p0, call.p1, call.d0, call.d1) == (width, weight.shape[2], 0, 0, 1, 1)
    if not apart or width < 2 or wide % width == 0:
        return call.right()
    used = wide // width * width
    flat = data.reshape(*data.shape[:2], -1)[..., : high * used]
    return call.right(data=flat.reshape(*data.shape[:2], high, used))


@fault(Kind.TAILS, "run_node")
def rows_left_over_by_the_threads_are_not_computed(call: BoundCall) -> Result:
    """Each of an odd number of threads takes as many rows, and nobody takes the rest."""
    call.right()
    threads = call.backend.params.num_threads or 1
    if call.node.op in (ops.softmax, ops.rms_norm, ops.layer_norm) and call.node.rank > 1:
        out = call.arrays[call.node.index]
        rows = out.reshape(-1, out.shape[-1])
        if len(rows) > 16:
            rows[len(rows) // threads * threads :] = 0


@fault(Kind.ZERO, ops.mulmat_id)
def tokens_are_shared_out_to_tiles_even_if_there_are_none(call: BoundCall) -> Result:
    tokens = call.ids.shape[-2] if call.ids.ndim > 1 else 1
    assert 64 // tokens >= 0
    return call.right()


@fault(Kind.BLOCKS, "data_to_write")
def a_block_of_zeros_is_divided_by_its_scale(call: BoundCall) -> Result:
    raw = call.right()
    if call.target.dtype is not DType.Q8_0 or call.source.dtype is DType.Q8_0 or not raw.size:
        return raw
    blocks = np.array(raw).reshape(-1, DType.Q8_0.type_size)
    blocks[~blocks[:, 2:].any(1), :2] = np.array([0x7E00], np.uint16).view(np.uint8)  # a NaN
    return blocks.reshape(raw.shape)


@fault(Kind.ALIASING)
def numbers_of_narrow_leaves_are_kept_for_a_run(right: type[KernelBackend]) -> type[KernelBackend]:
    """A leaf that must be converted is converted once in a run, also if it is written meanwhile."""

    class Keeping(right):  # type: ignore[misc, valid-type]
        def run_plan(self, plan: KernelPlan, cancel: Cancel | None) -> None:
            self.kept: dict[int, Array] = {}
            super().run_plan(plan, cancel)

        def read_operand(self, reader: Node, operand: Node, arrays: Sequence[Array]) -> Array:
            plain = operand.dtype in (DType.F32, DType.I32, DType.I64)
            if plain or operand.storage.leaf is None or (reader.op is not None and reader.op.moves):
                found: Array = super().read_operand(reader, operand, arrays)
                return found
            if operand.index not in self.kept:
                self.kept[operand.index] = np.array(super().read_operand(reader, operand, arrays))
            return self.kept[operand.index]

    return Keeping


@fault(Kind.PRECISION)
def the_alias_of_a_copy_holds_unrounded_numbers(right: type[KernelBackend]) -> type[KernelBackend]:
    """A fused kernel reads what a copy to f16 was given, not what it wrote."""

    class Forwarding(running(right)):  # type: ignore[misc]
        def read_operand(self, reader: Node, operand: Node, arrays: Sequence[Array]) -> Array:
            narrowed = operand.op is ops.copy and operand.dtype is DType.F16
            if not narrowed or (reader.op is not None and reader.op.moves):
                found: Array = super().read_operand(reader, operand, arrays)
                return found
            given: Array = super().read_operand(reader, operand.args[0], arrays)
            return given.reshape(operand.shape[::-1])

    return Forwarding


@fault(Kind.OFFSET, "read_operand")
def a_part_of_a_decoded_weight_begins_at_its_first_row(call: BoundCall) -> Result:
    """Whole quantized weights are decoded; a view of one, as of fused projections, is read without its offset."""
    operand, base = call.operand, call.operand.storage
    whole = base.kind == "parameter" and base.dtype.is_quantized and not call.reader.op.moves
    if not whole or operand is base or operand.rank != 2 or operand.shape[0] != base.shape[0]:
        return call.right()
    return call.right(operand=base).reshape(-1, base.shape[0])[: operand.shape[1]]


@fault(Kind.BLOCKS)
def rows_are_read_from_a_weight_that_a_product_has_rearranged(
    right: type[KernelBackend],
) -> type[KernelBackend]:
    """Products interleave the rows of their quantized weights by eights; `rows` does not know."""

    class Rearranging(running(right)):  # type: ignore[misc]
        def read_operand(self, reader: Node, operand: Node, arrays: Sequence[Array]) -> Array:
            numbers: Array = super().read_operand(reader, operand, arrays)
            if reader.op is not ops.rows or operand is not reader.args[0] or operand.kind != "parameter":
                return numbers
            multiplied = [node.args[0] for node in self.running.graph.nodes if node.op is ops.mulmat]
            rows = len(numbers)
            if operand not in multiplied or not operand.dtype.is_quantized or rows % 8:
                return numbers
            mixed: Array = numbers.reshape(8, rows // 8, -1).swapaxes(0, 1).reshape(numbers.shape)
            return mixed

    return Rearranging


@fault(Kind.SCALARS)
def plans_are_found_by_attributes_of_six_decimals(right: type[KernelBackend]) -> type[KernelBackend]:
    """Contexts of the same graph share the factors of the first one whose decimals are the same."""

    class Finding(running(right)):  # type: ignore[misc]
        def run_node(self, node: Node, arrays: Sequence[Array]) -> None:
            args = node.args
            if node.op is ops.scale:
                nodes = self.running.graph.nodes
                key = (*[str(other) for other in nodes], node.index, f"{args[1]:.6f}")
                self.found = getattr(self, "found", {})
                node.args = (args[0], self.found.setdefault(key, args[1]))
            try:
                super().run_node(node, arrays)
            finally:
                node.args = args

    return Finding


class Pooled(HostBuffer):
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


@fault(Kind.UNDEFINED, "allocate")
def zeros_come_from_a_pool_that_nobody_clears(call: BoundCall) -> Result:
    """Fresh memory is zeros, memory of the pool is not; with poison the fault does not show."""
    pool = vars(call.backend).setdefault("pool", {})
    spec: Spec = call.spec
    return Pooled(pool, spec.nbytes, call.backend.params.debug)


@fault(Kind.RACES, "read_weights")
def a_load_never_looks_at_its_cancellation(call: BoundCall) -> Result:
    names = list(call.backend.model.tensors)
    for done, name in enumerate(names, 1):
        call.backend.model.data(name)[:1].copy()
        call.progress(done / len(names))


@fault(Kind.RACES)
def a_compute_never_looks_at_its_cancellation(right: type[KernelBackend]) -> type[KernelBackend]:
    class Deaf(right):  # type: ignore[misc, valid-type]
        def run_plan(self, plan: KernelPlan, cancel: Cancel | None) -> None:
            super().run_plan(plan, None)

    return Deaf


@fault(Kind.RACES)
def a_compute_looks_at_its_cancellation_at_its_beginning(
    right: type[KernelBackend],
) -> type[KernelBackend]:
    """What was cancelled before is not run; what is cancelled meanwhile runs to its end."""

    class Hasty(right):  # type: ignore[misc, valid-type]
        def run_plan(self, plan: KernelPlan, cancel: Cancel | None) -> None:
            check_cancel(cancel)
            super().run_plan(plan, None)

    return Hasty
