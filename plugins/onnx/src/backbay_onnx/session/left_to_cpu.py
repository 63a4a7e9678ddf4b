"""Nodes that the CPU computes in sessions on a device, as the device computes them wrongly or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import GraphProto, TensorProto, shape_inference

from .providers import Provider


def left_to_cpu(model: Any, provider: Provider, *, float16: bool) -> list[str]:
    """The nodes by name; without `float16`, also those that read or make such numbers."""
    if not provider.cpu_nodes_setting or (float16 and not provider.left_to_cpu):
        return []
    typed = model if float16 else shape_inference.infer_shapes(model)
    return [
        node.name
        for node, halves in _nodes(typed.graph, frozenset())
        if label_of(node) in provider.left_to_cpu
        or not (float16 or halves.isdisjoint([*node.input, *node.output]))
    ]


def label_of(node: Any) -> str:
    """What a node is, by its name: its op, unless the lowering says more."""
    return str(node.name.rpartition("_")[0])


def _nodes(graph: GraphProto, outer: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    """All nodes, also of loop bodies, each with the float16 values that it may use."""
    described = (*graph.input, *graph.output, *graph.value_info)
    halves = outer | {
        each.name for each in described if each.type.tensor_type.elem_type == TensorProto.FLOAT16
    }
    halves |= {each.name for each in graph.initializer if each.data_type == TensorProto.FLOAT16}
    for node in graph.node:
        yield node, halves
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g, halves)
