"""A refusal names the nodes that a provider does not take, and not those around them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx.parser
import onnxruntime
import pytest

from backbay import BackbayError, BackendParams, RefusalError
from backbay_conformance import run
from backbay_onnx.adapter.backend import ProviderBackend
from backbay_onnx.adapter.node_separation import INNER, separate_nodes
from backbay_onnx.adapter.provider import Provider
from backbay_onnx.lowering.model_builder import values_read

CPU = "CPUExecutionProvider"
L2_NORM = onnx.parser.parse_model("""<ir_version: 11, opset_import: ["": 23]>
l2_norm (float[2, 3] x) => (float[2, 3] y) <int64[1] axis = {-1}, float eps = {1e-12}>
{ square = Mul(x, x) sum = ReduceSum(square, axis) root = Sqrt(sum) above = Max(root, eps) y = Div(x, above) }""")


class Picky(Provider):
    """Takes no ReduceSum, nor any node that is joined to one by values."""

    def _session(self, model: bytes, threads: int, *, fallback: bool) -> Any:
        nodes = onnx.load_from_string(model).graph.node
        left = {node.output[0] for node in nodes if node.op_type == "ReduceSum"}
        if left and not fallback:
            raise BackbayError("nodes are left to the CPU")
        for _ in nodes:
            for node in nodes:
                joined = {*values_read(node), *node.output}
                if joined & left:
                    left |= {value for other in nodes for value in other.output if value in joined}
        parts = [
            SimpleNamespace(
                ep_name=CPU if node.output[0] in left else self.name, get_nodes=lambda n=node: [n]
            )
            for node in nodes
        ]
        return SimpleNamespace(get_provider_graph_assignment_info=lambda: parts)


def test_nodes_around_a_refused_one_are_not_named() -> None:
    with pytest.raises(RefusalError) as caught:
        Picky("picky", "").session(L2_NORM.SerializeToString(), 1)
    assert caught.value.reason == "picky does not take ReduceSum"


def test_if_each_node_is_taken_alone_all_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backbay_onnx.adapter.provider.separate_nodes", lambda model: b"")
    with pytest.raises(RefusalError, match="does not take Mul, ReduceSum, Sqrt, Max, Div"):
        Picky("picky", "").session(L2_NORM.SerializeToString(), 1)


@pytest.mark.parametrize("op", ["l2_norm", "ssm_scan", "solve_tri", "argsort", "pad", "set_rows"])
def test_onnx_runtime_takes_a_model_whose_nodes_are_apart(op: str, tmp_path: Path) -> None:
    report = run(
        ProviderBackend, ops=[op], size="tiny", options={"ep": f"builtin:{CPU}", "save": str(tmp_path)}
    )
    assert report.ok, report.failures[0]
    saved = [*tmp_path.glob("*.onnx")]
    assert saved
    for path in saved:
        apart = separate_nodes(path.read_bytes())
        onnxruntime.InferenceSession(apart, providers=[CPU])
        nodes = onnx.load_from_string(apart).graph.node
        made = {value for node in nodes for value in node.output}
        varying = {value.name for value in onnx.load(path).graph.input}
        assert not [node for node in nodes if made & {*values_read(node)} and varying & {*values_read(node)}]


def test_nodes_of_a_loop_are_told_from_others() -> None:
    inner = onnx.parser.parse_graph(
        "body (int64 turn, bool going) => (bool on, float[1] z) { on = Identity(going) z = Neg(y) }"
    )
    loop = onnx.helper.make_node("Loop", ["n", ""], ["z"], body=inner)
    outer = onnx.parser.parse_graph("g (float[1] x, int64 n) => (float[k, 1] z) { y = Neg(x) }")
    outer.node.append(loop)
    opsets = [onnx.helper.make_opsetid("", 23)]
    model = onnx.helper.make_model(outer, ir_version=11, opset_imports=opsets)
    [neg, apart] = onnx.load_from_string(separate_nodes(model.SerializeToString())).graph.node
    assert not neg.name.startswith(INNER)
    assert [node.name for node in apart.attribute[0].g.node] == [f"{INNER}on", f"{INNER}z"]


def test_a_refused_graph_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bytes] = []

    def refuse(self: Provider, model: bytes, threads: int) -> Any:
        tried.append(model)
        raise RefusalError("no")

    monkeypatch.setattr(Provider, "session", refuse)
    for _ in range(2):
        params = BackendParams(options={"ep": f"builtin:{CPU}", "precision": "f32"})
        report = run(ProviderBackend, ops=["neg"], size="tiny", options=params.options)
        assert report.refusals
    assert len(tried) == len(set(tried))
