"""Faults planted without knowledge of the suite a fifth time: results that are kept, and found again by too little."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import Graph, KernelBackend, Node
from backbay.plugin import Cancel, KernelPlan

from ..faults import Kind, fault
from ..fused import Array

SMALL = 1 << 16
"""The most bytes of a result that is kept."""


@fault(Kind.FUSION, like="L15660")
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


@fault(Kind.OFFSET, like="L19145")
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


@fault(Kind.RACES, like="L24360")
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
