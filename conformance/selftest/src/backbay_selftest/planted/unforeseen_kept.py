"""Faults planted without knowledge of the suite a fifth and a sixth time: what is kept too long, or found again by too little."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import CancelledError, Graph, KernelBackend, Node, ops
from backbay.internals import KernelPlan
from backbay.plugin import GRAPH, Cancel, HostBuffer

from ..faults import Kind, fault
from ..fused import Array
from .unforeseen import running

SMALL = 1 << 16
"""The most bytes of a result that is kept."""
LATE = 1 << 14
"""The least bytes of a leaf that is uploaded late."""


@fault(Kind.FUSION)
def what_is_made_of_weights_alone_is_kept_without_attributes(
    right: type[KernelBackend],
) -> type[KernelBackend]:
    """Ops on nothing but weights run once; others of the same op on the same weight find the first one's result."""

    class Folding(right):  # type: ignore[misc, valid-type]
        def run_node(self, node: Node, arrays: Sequence[Array]) -> None:
            constant = node.op is not None and node.op.writes is None and node.nbytes <= SMALL
            if not constant or any(operand.kind != "parameter" for operand in node.operands):
                super().run_node(node, arrays)
                return
            weights = tuple(operand.leaf and operand.leaf.name for operand in node.operands)
            kept: dict[Any, Array] = vars(self).setdefault("folded", {})  # type: ignore[attr-defined]
            key = (node.op, weights, node.dtype, node.shape)
            if key in kept:
                arrays[node.index][...] = kept[key]
                return
            super().run_node(node, arrays)
            kept[key] = np.array(arrays[node.index])

    return Folding


@fault(Kind.OFFSET)
def decoded_parts_of_a_weight_are_kept_without_their_place(
    right: type[KernelBackend],
) -> type[KernelBackend]:
    """A part of a quantized weight is decoded once; another part of the same shape finds the first one's numbers."""

    class Keeping(right):  # type: ignore[misc, valid-type]
        def read_operand(self, reader: Node, operand: Node, arrays: Sequence[Array]) -> Array:
            root = operand.storage
            part = operand.is_view and root.kind == "parameter" and operand.dtype.is_quantized
            if not part or root.leaf is None or (reader.op is not None and reader.op.moves):
                numbers: Array = super().read_operand(reader, operand, arrays)
                return numbers
            kept: dict[Any, Array] = vars(self).setdefault("parts", {})  # type: ignore[attr-defined]
            key = (root.leaf.name, operand.shape)
            if key not in kept:
                kept[key] = np.array(super().read_operand(reader, operand, arrays))
            return kept[key]

    return Keeping


@fault(Kind.RACES)
def each_thread_keeps_the_results_of_its_own_computes(right: type[KernelBackend]) -> type[KernelBackend]:
    """A thread that computed a graph before reads its old results after another thread computed the graph again."""

    class Threaded(KernelPlan):
        def run(self, cancel: Cancel | None) -> None:
            super().run(cancel)
            mine = vars(self).setdefault("mine", threading.local())
            mine.results = {
                node.index: np.array(super(Threaded, self).read(node)) for node in self.graph.outputs
            }

        def read(self, node: Node) -> Array:
            results = getattr(vars(self).get("mine"), "results", {})
            found: Array = results[node.index] if node.index in results else super().read(node)
            return found

    class Threading(right):  # type: ignore[misc, valid-type]
        def compile(self, graph: Graph) -> KernelPlan:
            plan: KernelPlan = super().compile(graph)
            plan.__class__ = Threaded
            return plan

    return Threading


# -- a sixth planting --------------------------------------------------------------------------------------


@fault(Kind.FUSION)
def a_gate_of_one_number_a_row_is_read_along_the_row(right: type[KernelBackend]) -> type[KernelBackend]:
    """A product with a sigmoid that only it reads is one kernel, which takes the gate's numbers by their flat index."""

    class Gated(running(right)):  # type: ignore[misc]
        def run_node(self, node: Node, arrays: Sequence[Array]) -> None:
            if node.op is not ops.mul or not self.gates(node):
                super().run_node(node, arrays)
                return
            x, gate = (self.read_operand(node, operand, arrays) for operand in node.args)
            flat = gate.reshape(-1)[np.arange(x.size) % gate.size].reshape(x.shape)
            self.store(node, x * flat, arrays[node.index])

        def gates(self, node: Node) -> bool:
            """Whether the second operand is a sigmoid of one number a row, and of no other use."""
            (x, gate), graph = node.args, self.running.graph
            if gate.op is not ops.sigmoid or gate.shape[0] != 1 or x.shape[0] == 1 or gate.size < 2:
                return False
            uses = sum(gate in later.operands for later in graph.nodes if later.op is not None)
            return bool(uses == 1 and gate not in graph.outputs)

    return Gated


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


@fault(Kind.RACES)
def large_leaves_are_uploaded_when_a_graph_runs(right: type[KernelBackend]) -> type[KernelBackend]:
    """What the host writes stays in the caller's array, which may have changed when it is read."""

    class Late(right):  # type: ignore[misc, valid-type]
        def allocate(self, spec: Any, placement: Any) -> LateBuffer:
            return LateBuffer(spec.nbytes, self.params.debug)

        def run_plan(self, plan: KernelPlan, cancel: Cancel | None) -> None:
            for node in plan.graph.nodes:
                if node.leaf is not None and isinstance(node.leaf.buffer, LateBuffer):
                    node.leaf.buffer.read()
            super().run_plan(plan, cancel)

    return Late


@fault(Kind.CLAIMS)
def a_cancelled_graph_stays_booked(right: type[KernelBackend]) -> type[KernelBackend]:
    """A graph whose run was cancelled gives its memory back to nobody."""

    class Leaking(KernelPlan):
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

    class Cancelling(right):  # type: ignore[misc, valid-type]
        def compile(self, graph: Graph) -> KernelPlan:
            plan: KernelPlan = super().compile(graph)
            plan.__class__ = Leaking
            return plan

    return Cancelling
