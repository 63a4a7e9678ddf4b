"""The nodes of an ONNX model become calls of the contract that compute the same."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_files import calls_in, onnx_model

import backbay
from backbay import BackbayError, ModelFileError
from backbay_conformance import lab_for
from backbay_conformance.runner.selection import names
from backbay_conformance.workloads.graph_tracer import GraphTracer
from backbay_conformance.workloads.model_calls import ModelCallCounts, read_model_calls

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from backbay_conformance.workloads.onnx_graph import OnnxGraphTracer  # noqa: E402

names()  # declares the cases
node = helper.make_node
x, y, w = (2, 3, 8, 16), (2, 3, 16, 5), (16,)


def same(op: str, *shapes: tuple[int, ...], constants: Any = (), version: int = 23, **attributes: Any) -> Any:
    return pytest.param(op, shapes, constants, version, attributes, id=f"{op}{version}-{len(attributes)}")


NODES = [
    same("Add", x, w),
    same("Add", w, x),
    same("Sub", w, x),
    same("Sub", x, (3, 1, 16)),
    same("Mul", x, (8, 1)),
    same("Mul", x, constants=[np.float32(0.25)]),
    same("Div", x, constants=[np.float32(4)]),
    same("Div", (3, 1, 1), x),
    same("Pow", x, constants=[np.float32(2)]),
    same("Pow", x, constants=[np.float32(3)]),
    same("Reciprocal", x),
    same("Clip", x, constants=[np.float32(-0.5), np.float32(0.5)]),
    same("Clip", x, version=6, min=-0.5, max=0.5),
    *[same(op, x) for op in ("Neg", "Exp", "Sin", "Cos", "Tanh", "Sigmoid", "Relu", "Softplus", "Identity")],
    same("Gelu", x),
    same("Gelu", x, approximate="tanh"),
    same("MatMul", x, y),
    same("MatMul", x, (16, 5)),
    same("MatMul", (8, 16), y),
    same("MatMul", (16,), (16, 5)),
    same("MatMul", x, (16,)),
    same("Gemm", (6, 16), (16, 5), (5,)),
    same("Gemm", (16, 6), (5, 16), transA=1, transB=1, alpha=0.5),
    same("Softmax", x),
    same("Softmax", (8, 16), version=11),
    same("LayerNormalization", x, w, w, epsilon=0.1),
    same("LayerNormalization", x, w),
    same("RMSNormalization", x, w, epsilon=0.1),
    same("ReduceMean", x, constants=[np.array([-1])]),
    same("ReduceMean", x, constants=[np.array([1, 3])], keepdims=0),
    same("ReduceMean", x, version=13, axes=[2, 3]),
    same("ReduceSum", x, constants=[np.array([0])]),
    same("ReduceSum", x, keepdims=0),
    same("GlobalAveragePool", x),
    same("Transpose", x),
    same("Transpose", x, perm=[0, 2, 1, 3]),
    same("Transpose", x, perm=[3, 0, 1, 2]),
    same("Reshape", x, constants=[np.array([0, -1, 4])]),
    same("Flatten", x, axis=2),
    same("Squeeze", (2, 1, 3, 1), constants=[np.array([1])]),
    same("Unsqueeze", (2, 8), constants=[np.array([0, 2])]),
    same("Expand", (3, 1, 16), constants=[np.array([2, 3, 8, 16])]),
    same("Tile", (2, 8), constants=[np.array([3, 2])]),
    same("Concat", x, (2, 3, 4, 16), axis=2),
    same("Concat", x, (2, 3, 8, 1), x, axis=-1),
    same("Slice", x, constants=[np.array([1, -9]), np.array([99, -2]), np.array([1, -1]), np.array([1, 3])]),
    same("Gather", x, constants=[np.array(1)], axis=1),
    same("Gather", x, constants=[np.array(-1)], axis=3),
    same("Conv", (2, 3, 9, 11), (4, 3, 3, 2), (4,), strides=[2, 1], pads=[1, 0, 1, 0], dilations=[1, 2]),
    same("Conv", (2, 3, 9), (4, 3, 3), (4,), strides=[2], pads=[1, 1], kernel_shape=[3]),
    same("Attention", x, (2, 3, 7, 16), (2, 3, 7, 4), (8, 7), scale=0.5),
    same("Attention", x, (2, 1, 7, 16), (2, 1, 7, 4)),
]


@pytest.mark.parametrize(("op", "shapes", "constants", "version", "attributes"), NODES)
def test_a_node_and_its_calls_compute_the_same(
    op: str, shapes: Any, constants: Any, version: int, attributes: Mapping[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    feeds = {f"x{n}": rng.uniform(0.5, 1.5, shape).astype(np.float32) for n, shape in enumerate(shapes)}
    known = {f"c{n}": data for n, data in enumerate(constants)}
    one = node(op, [*feeds, *known], ["y"], **attributes)
    model = onnx_model([one], dict(zip(feeds, shapes, strict=True)), ["y"], known, version)
    with backbay.open(None, "cpu_ref") as backend, backend.new_context() as ctx:
        tracer = GraphTracer(ctx)
        graph = OnnxGraphTracer(tracer, model)
        graph.trace(model.graph.node[0])
        assert not tracer.unmapped
        for name, data in feeds.items():
            tracer.tensor(graph.values[name]).from_floats(data)
        result = graph.values["y"].tensor
        assert result is not None
        ctx.compute(result)
        got = result.numpy()
    [expected] = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    assert got.shape == (expected.shape or (1,))


def read(path: Path, model: Any) -> tuple[ModelCallCounts, dict[str, list[str]]]:
    onnx.save(model, path)
    return calls_in(path)


def test_the_result_of_a_node_is_an_operand_with_its_layout(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Exp", ["kt"], ["e"]),
    ]
    model = onnx_model(nodes, {"q": (1, 2, 8, 16), "k": (1, 2, 7, 16)}, ["s", "e"])
    onnx.save(model, tmp_path / "model.onnx")
    lab = lab_for("cpu_ref")
    assert read_model_calls(lab, tmp_path / "model.onnx").calls == {"mulmat": 1, "exp": 1}
    product, exp = lab.model_calls["mulmat"][0], lab.model_calls["exp"][0]
    assert [one.strides for one in product.operands] == [None, None], "two transpositions cancel out"
    assert exp.operands[0].strides is not None


def test_a_constant_is_transposed_before_the_first_call(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["w"], ["wt"]),
        node("MatMul", ["x", "w"], ["y"]),
        node("MatMul", ["x", "wt"], ["z"]),
    ]
    weight = np.zeros((16, 16), np.float32)
    found, calls = read(tmp_path / "model.onnx", onnx_model(nodes, {"x": (4, 16)}, ["y", "z"], {"w": weight}))
    assert calls == {"mulmat": ["f32[16,16], f32[16,4]"]}
    assert (found.nodes, found.unmapped) == (2, {})


def test_sizes_that_follow_from_shapes_are_known(tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axis"], ["n1"]),
        node("Concat", ["n1", "heads"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
        node("Softmax", ["y"], ["z"]),
    ]
    known = {"zero": np.array(1), "axis": np.array([0]), "heads": np.array([-1, 12])}
    found, calls = read(tmp_path / "model.onnx", onnx_model(nodes, {"x": (1, 8, 24)}, ["z"], known))
    assert calls == {"softmax": ["f32[12,2,8]"]}
    assert found.nodes == 2


def test_named_dimensions_have_stated_sizes(tmp_path: Path) -> None:
    shapes = {"x": ("batch", "tokens", 16), "mask": ("tokens", "others")}
    nodes = [node("Exp", ["x"], ["y"]), node("Neg", ["mask"], ["z"])]
    _, calls = read(tmp_path / "model.onnx", onnx_model(nodes, shapes, ["y", "z"]))
    assert calls == {"exp": ["f32[16,128,1]"], "neg": ["f32[128,128]"]}


def test_halves_are_judged_as_halves(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("Cast", ["y"], ["z"], to=TensorProto.BFLOAT16),
        node("Exp", ["z"], ["e"]),
    ]
    model = onnx_model(
        nodes, {"x": (4, 16)}, ["e"], {"w": np.zeros((16, 8), np.float16)}, dtypes={"x": TensorProto.FLOAT16}
    )
    _, calls = read(tmp_path / "model.onnx", model)
    assert calls == {
        "mulmat": ["f16[16,8], f16[16,4]"],
        "cast": ["f32[8,4]", "f16[8,4]"],
        "exp": ["bf16[8,4]"],
    }


def test_one_op_stands_for_a_gate_of_two_nodes(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", ["x"], ["s"]), node("Mul", ["x", "s"], ["y"])]
    _, calls = read(tmp_path / "model.onnx", onnx_model(nodes, {"x": (4, 16)}, ["y"]))
    assert calls == {"sigmoid": ["f32[16,4]"], "silu": ["f32[16,4]"]}


def test_rows_are_picked_by_ids_of_their_own(tmp_path: Path) -> None:
    model = onnx_model(
        [node("Gather", ["w", "ids"], ["y"])], {"ids": ("b", "t")}, ["y"], {"w": np.zeros((99, 16), np.float32)},
        dtypes={"ids": TensorProto.INT64},
    )  # fmt: skip
    assert read(tmp_path / "model.onnx", model)[1] == {"rows": ["f32[16,99], i32[128]"]}


def test_what_is_no_call_of_the_contract_is_counted_by_name(tmp_path: Path) -> None:
    nodes = [
        node("Einsum", ["x", "x"], ["a"], equation="bij,bij->bi"),
        node("Softmax", ["x"], ["b"], axis=1),
        node("Cast", ["x"], ["c"], to=TensorProto.BOOL),
        node("Not", ["c"], ["d"]),
        node("Add", ["n", "n"], ["e"]),
        node("Pow", ["x", "x"], ["f"]),
        node("Conv", ["image", "w"], ["g"], group=2),
        node("Conv", ["image", "v"], ["h"], pads=[1, 0, 0, 0]),
        node("Unsqueeze", ["x", "axes"], ["i"]),
        node("Custom", ["x"], ["j"], domain="example"),
        node("Exp", ["j"], ["k"]),
        node("Gemm", ["p", "p"], ["l"], beta=0.5),
        node("Relu", ["x"], ["m"]),
    ]  # fmt: skip
    shapes = {"x": (1, 4, 16), "n": (3,), "image": (1, 4, 8, 8), "p": (4, 4)}
    known = {
        "w": np.zeros((4, 2, 3, 3), np.float32),
        "v": np.zeros((4, 4, 3, 3), np.float32),
        "axes": np.array([0, 1]),
    }
    model = onnx_model(nodes, shapes, ["k", "m"], known, dtypes={"n": TensorProto.INT64})
    model.opset_import.append(helper.make_opsetid("example", 1))
    found, calls = read(tmp_path / "model.onnx", model)
    assert calls == {"relu": ["f32[16,4,1]"]}
    assert found.nodes == len(nodes)
    assert found.unmapped == {
        "Einsum": 1,
        "Softmax (axis)": 1,
        "Cast (bool)": 1,
        "Not": 1,
        "Add (i64)": 1,
        "Pow (computed numbers)": 1,
        "Conv (attributes)": 1,
        "Conv (pads)": 1,
        "Unsqueeze (5 dimensions)": 1,
        "example.Custom": 1,
        "Exp (unknown shape)": 1,
        "Gemm (attributes)": 1,
    }


def test_a_graph_without_any_call_names_its_nodes(tmp_path: Path) -> None:
    model = onnx_model([node("Einsum", ["x"], ["y"], equation="ij->ji")], {"x": (3, 4)}, ["y"])
    with pytest.raises(BackbayError, match=r"no node of .*model\.onnx is a call of the contract: Einsum"):
        read(tmp_path / "model.onnx", model)


def test_weights_in_other_files_are_not_needed(tmp_path: Path) -> None:
    weight = TensorProto(
        name="w", dims=[16, 8], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value="missing/weights.bin")
    model = onnx_model([node("MatMul", ["x", "w"], ["y"])], {"x": (4, 16)}, ["y"])
    model.graph.initializer.append(weight)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert read_model_calls(lab_for("cpu_ref"), tmp_path / "model.onnx").calls == {"mulmat": 1}


@pytest.mark.parametrize("data", [b"", b"no model\n", bytes(range(256))])
def test_another_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model").write_bytes(data)
    with pytest.raises(
        ModelFileError, match=r"expected a GGUF file, an ONNX model or a program of torch\.export"
    ):
        read_model_calls(lab_for("cpu_ref"), tmp_path / "model")


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BackbayError, match=r'pip install "./conformance\[onnx\]"'):
        read_model_calls(lab_for("cpu_ref"), tmp_path / "model.onnx")
