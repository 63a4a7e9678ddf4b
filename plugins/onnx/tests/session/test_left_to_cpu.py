"""Nodes that a provider computes wrongly, or not at all, are left to the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from onnx import GraphProto, NodeProto, TensorProto

from backbay_onnx.lowering.model_builder import ModelBuilder
from backbay_onnx.session.cpu_nodes import leave_nodes_to_cpu, node_label


@pytest.fixture
def model() -> ModelBuilder:
    """x float32, h float16; the body of a loop casts h."""
    b = ModelBuilder()
    b.add_input("x", TensorProto.FLOAT, 1)
    b.add_input("h", TensorProto.FLOAT16, 1)
    joined = b.add("Concat", b.add("Tanh", b.add("Neg", "x")), "x", label="Pieces", axis=0)
    with b.body() as body:
        body.input(TensorProto.INT64, 0)
        more = body.input(TensorProto.BOOL, 0)
        inner = b.add("Cast", b.add("Neg", "h"), to=TensorProto.FLOAT)
    looped = b.add(
        "Loop", "", "", body=body.graph([(more, TensorProto.BOOL, 0), (inner, TensorProto.FLOAT, 1)])
    )
    b.end("joined", joined, TensorProto.FLOAT, 1)
    b.end("looped", looped, TensorProto.FLOAT, 2)
    return b


def nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes(attribute.g)


def left(model: ModelBuilder, *labels: str, float16: bool) -> list[str]:
    """The labels of the nodes that are left to the CPU."""
    built = model.build()
    leave_nodes_to_cpu(built, labels, float16=float16)
    return sorted(node_label(node) for node in nodes(built.graph) if node.metadata_props)


def test_nodes_are_chosen_by_their_label(model: ModelBuilder) -> None:
    assert left(model, "Tanh", "Pieces", float16=True) == ["Pieces", "Tanh"]


def test_without_float16_all_nodes_that_touch_it_are_chosen_too(model: ModelBuilder) -> None:
    assert left(model, "Tanh", "Pieces", float16=False) == ["Cast", "Neg", "Pieces", "Tanh"]


def test_nodes_are_left_to_the_cpu_as_they_are_added(model: ModelBuilder) -> None:
    model.leaves_to_cpu = True
    model.end("more", model.add("Exp", model.add_once("Abs", "x")), TensorProto.FLOAT, 1)
    built = model.build()
    assert [node.op_type for node in built.graph.node if node.metadata_props] == ["Abs", "Exp", "Identity"]
