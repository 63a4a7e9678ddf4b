"""Nodes that the CPU computes in a session on another device."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from onnx import GraphProto, NodeProto, TensorProto, shape_inference

from .providers import HOST_PROVIDER

ANNOTATION, CPU = "layer_ann", "cpu"  # metadata of a node, which ONNX Runtime reads, and their value
CPU_NODES = ("session.layer_assignment_settings", f"{HOST_PROVIDER.name}(={CPU})")
"""The entry of a session's options that sends such nodes to the CPU."""


def leave_to_cpu(node: NodeProto) -> None:
    if not any(entry.key == ANNOTATION for entry in node.metadata_props):
        node.metadata_props.add(key=ANNOTATION, value=CPU)


def leave_nodes_to_cpu(model: Any, labels: Collection[str], *, float16: bool) -> None:
    """Leave nodes with one of the labels to the CPU; without `float16`, also those that read or make such numbers."""
    halves = set[str]() if float16 else _halves(shape_inference.infer_shapes(model).graph)
    for graph in _graphs(model.graph):
        for node in graph.node:
            if node_label(node) in labels or not halves.isdisjoint([*node.input, *node.output]):
                leave_to_cpu(node)


def node_label(node: Any) -> str:
    """What a node is, by its name: its op, unless the lowering says more."""
    return str(node.name.rpartition("_")[0])


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph, and its loop bodies."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _halves(graph: GraphProto) -> set[str]:
    """The names of float16 values, which are unique in a model of ours."""
    found: set[str] = set()
    for each in _graphs(graph):
        described = (*each.input, *each.output, *each.value_info)
        found |= {
            value.name for value in described if value.type.tensor_type.elem_type == TensorProto.FLOAT16
        }
        found |= {constant.name for constant in each.initializer if constant.data_type == TensorProto.FLOAT16}
    return found
