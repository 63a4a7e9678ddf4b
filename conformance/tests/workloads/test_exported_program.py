"""The nodes of a program that torch.export has saved become calls of the contract; PyTorch is not needed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from graph_files import calls_in, meta, torch_node, write_program

import backbay
from backbay import BackbayError, ModelFileError
from backbay_conformance.runner.selection import names
from backbay_conformance.workloads.exported_program import trace_program
from backbay_conformance.workloads.graph_tracer import GraphNode, GraphTracer

names()  # declares the cases


def test_calls_have_the_sizes_of_the_export(tmp_path: Path) -> None:
    nodes = [
        torch_node("linear.default", ["x", "w", "b"], ["y"]),
        torch_node("layer_norm.default", ["y", [8], "g", None, 1e-5, False], ["z"]),
        torch_node("gelu.default", ["z"], ["a"], approximate="none"),
        torch_node("gelu_.default", ["a"], ["c"]),
    ]  # fmt: skip
    del nodes[2]["inputs"][1:]  # a text is a value's name
    values = {name: meta((2, -5, 8)) for name in "yzac"}
    values |= {"x": meta((2, -5, 16)), "w": meta((8, 16)), "b": meta((8,)), "g": meta((8,))}
    specs = [("parameter", name) for name in "wbg"]
    found, calls = calls_in(write_program(tmp_path / "model.pt2", nodes, values, specs))
    assert calls == {
        "mulmat": ["f32[16,8], f32[16,5,2]"],
        "add": ["f32[8,5,2], f32[8]"],
        "layer_norm": ["f32[8,5,2], f32[8]"],
        "gelu_erf": ["f32[8,5,2]"],
    }
    assert (found.nodes, found.unmapped) == (4, {})


def test_attention_over_a_mask_of_truth_values(tmp_path: Path) -> None:
    values = {name: meta((1, 2, 4, 16)) for name in "qkvyz"} | {"m": meta((1, 1, 4, 4), "bool")}
    op = "scaled_dot_product_attention.default"
    nodes = [torch_node(op, [*"qkvm"], ["y"]), torch_node(op, [*"qkv", None, 0.0, True], ["z"], scale=0.25)]
    _, calls = calls_in(write_program(tmp_path / "model.pt2", nodes, values))
    attended = ", ".join(["f32[16,2,4,1]"] * 3)
    assert calls == {"scaled_dot_product_attention": [f"{attended}, f32[4,4,1,1]", f"{attended}, f32[4,4]"]}


def test_a_buffer_is_constant_unless_the_program_changes_it(tmp_path: Path) -> None:
    values = {"w": meta((4, 4)), "cache": meta((4, 4)), "y": meta((4, 4)), "z": meta((4, 4))}
    nodes = [torch_node("neg.default", ["w"], ["y"]), torch_node("exp.default", ["cache"], ["z"])]
    specs = [("buffer", "w"), ("buffer", "cache")]
    path = write_program(tmp_path / "model.pt2", nodes, values, specs, mutated=["cache"])
    assert calls_in(path)[1] == {"exp": ["f32[4,4]"]}


def test_what_is_no_call_of_the_contract_is_counted_by_name(tmp_path: Path) -> None:
    values = {"x": meta((4, 16)), "y": meta((4, 16)), "m": meta((4, 16), "bool"), "z": meta((2, 2, 2, 2, 4))}
    nodes = [
        torch_node("relu.default", ["x"], ["y"]),
        torch_node("masked_fill.Scalar", ["x", "m", 0.0], ["y"]),
        torch_node("view.default", ["x", [2, 2, 2, 2, 4]], ["z"]),
        torch_node("add.Tensor", ["x", "y"], ["y"], alpha=2),
        {**torch_node("neg.default", ["x"], ["y"]), "target": "torch.ops.mine.neg.default"},
        torch_node("sym_size.int", ["x", 0], []),
    ]
    nodes[-1]["outputs"] = [{"as_sym_int": {"as_name": "s"}}]
    found, calls = calls_in(write_program(tmp_path / "model.pt2", nodes, values))
    assert calls == {"relu": ["f32[16,4]"]}
    assert found.nodes == 5
    assert found.unmapped == {
        "aten.masked_fill.Scalar": 1,
        "aten.view.default (5 dimensions)": 1,
        "aten.add.Tensor (alpha)": 1,
        "mine.neg.default": 1,
    }


def test_a_graph_without_any_call_names_its_nodes(tmp_path: Path) -> None:
    values = {"x": meta((4, 16)), "y": meta((4, 16))}
    path = write_program(tmp_path / "model.pt2", [torch_node("erfinv.default", ["x"], ["y"])], values)
    with pytest.raises(BackbayError, match=r"no node of .* is a call of the contract: aten\.erfinv\.default"):
        calls_in(path)


class Hostile:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return self.path.write_text, ("it ran",)


def test_nothing_of_the_file_is_unpickled(tmp_path: Path) -> None:
    values = {"x": meta((4, 16)), "y": meta((4, 16))}
    path = write_program(tmp_path / "model.pt2", [torch_node("exp.default", ["x"], ["y"])], values)
    trap = tmp_path / "trap"
    with ZipFile(path, "a") as archive:
        for name in ("data/sample_inputs/model.pt", "data/weights/weight_0", "data/constants/custom_obj_0"):
            archive.writestr(f"program/{name}", pickle.dumps(Hostile(trap)))
    assert calls_in(path)[1] == {"exp": ["f32[16,4]"]}
    assert not trap.exists()


def test_other_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"PK\3\4 and no more")
    with pytest.raises(ModelFileError, match=r"expected a program of torch\.export.*BadZipFile"):
        calls_in(path)
    with ZipFile(path, "w") as archive:
        archive.writestr("program/data.pkl", b"")
    with pytest.raises(ModelFileError, match=r"torch\.export"):
        calls_in(path)
    with pytest.raises(ModelFileError, match="version 9"):
        calls_in(write_program(path, [], {}, version=9))
    broken = [
        {"target": "torch.ops.aten.exp.default", "inputs": [], "outputs": [{"as_tensor": {"name": "y"}}]}
    ]
    with pytest.raises(ModelFileError, match="KeyError"):
        calls_in(write_program(path, broken, {}))


def test_a_program_and_its_calls_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, w: Any, image: Any, kernel: Any) -> Any:
            y = torch.nn.functional.layer_norm(x @ w.t(), (12,)) * 0.5
            heads = y.view(2, 7, 3, 4).transpose(1, 2)
            a = (
                torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
                .transpose(1, 2)
                .flatten(2)
            )
            first, second = torch.cat([a, y], -1).chunk(2, -1)
            pooled = (torch.nn.functional.silu(first) - second.pow(2)).mean(1)
            seen = torch.nn.functional.conv2d(image, kernel, stride=(2, 1), padding=(0, 1))
            seen = torch.nn.functional.adaptive_avg_pool2d(seen, 1).sum((2, 3))
            return torch.rsqrt(pooled[:, ::3].softmax(-1)) + seen.clamp(-0.1, 0.2).expand(2, 4)[
                :, 0
            ].unsqueeze(1)

    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in ((2, 7, 16), (12, 16), (1, 3, 9, 8), (4, 3, 2, 3))]
    program = torch.export.export(Block(), tuple(given))
    torch.export.save(program, tmp_path / "model.pt2")
    nodes: list[GraphNode] = []
    with backbay.open(None, "cpu_ref") as backend, backend.new_context() as ctx:
        tracer = GraphTracer(ctx)
        trace = tracer.trace
        monkeypatch.setattr(tracer, "trace", lambda node: nodes.append(node) or trace(node))
        trace_program(tracer, tmp_path / "model.pt2")
        assert not tracer.unmapped
        values = {
            value.shape: value for node in nodes[::-1] for value in node.operands
        }  # the first of each shape
        for data in given:
            tracer.tensor(values[tuple(data.shape)]).from_floats(data.numpy())
        result = nodes[-1].results[0].tensor
        assert result is not None
        ctx.compute(result)
        np.testing.assert_allclose(result.numpy(), program.module()(*given).numpy(), rtol=1e-4, atol=1e-5)
