"""Nodes that a provider computes wrongly, or not at all, are left to the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from onnx import TensorProto

from backbay_onnx.lowering.model_builder import ModelBuilder
from backbay_onnx.session.providers import HOST_PROVIDER, ProviderInfo
from backbay_onnx.session.session import cpu_nodes

PROVIDER = replace(HOST_PROVIDER, left_to_cpu=("Tanh", "Pieces"), cpu_nodes_setting="nodes")


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


def labels(model: ModelBuilder, provider: ProviderInfo, *, float16: bool) -> list[str]:
    found = cpu_nodes(model.build(), provider, float16=float16)
    return sorted(name.rpartition("_")[0] for name in found)


def test_nodes_are_chosen_by_their_label(model: ModelBuilder) -> None:
    assert labels(model, PROVIDER, float16=True) == ["Pieces", "Tanh"]


def test_without_float16_all_nodes_that_touch_it_are_chosen_too(model: ModelBuilder) -> None:
    assert labels(model, PROVIDER, float16=False) == ["Cast", "Neg", "Pieces", "Tanh"]


def test_a_provider_without_such_nodes_is_given_none(model: ModelBuilder) -> None:
    assert labels(model, replace(PROVIDER, left_to_cpu=()), float16=True) == []
    assert labels(model, HOST_PROVIDER, float16=False) == []
