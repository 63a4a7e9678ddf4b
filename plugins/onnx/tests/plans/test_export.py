"""An exported graph is a valid model that plain ONNX Runtime runs with the same result."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_file import quantized, write_model

import backbay
from backbay import DType

EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(6)
    weights = {
        "token_embd": (DType.Q4_K, quantized(rng, DType.Q4_K, 256, 9)),
        "blk.0.norm": (DType.F32, rng.standard_normal(256).astype(np.float32)),
        "blk.0.w": (DType.Q4_0, quantized(rng, DType.Q4_0, 256, 256)),
        "blk.0.h": (DType.F16, rng.standard_normal((8, 256)).astype(np.float16)),
        "blk.0.e": (DType.Q8_0, quantized(rng, DType.Q8_0, 256, 16, 3)),
    }
    return write_model(tmp_path / "model.gguf", weights, block_count=1)


PLAIN = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
inputs = dict(numpy.load(sys.argv[2]))
numpy.savez(sys.argv[3], **dict(zip([value.name for value in session.get_outputs()], session.run(None, inputs))))
"""


def run_plainly(file: Path, fed: dict[str, Any]) -> dict[str, Any]:
    """Check the model, and run it in a process without backbay."""
    onnx.checker.check_model(str(file))
    given, made = file.with_name("given.npz"), file.with_name("made.npz")
    np.savez(given, **fed)
    subprocess.run([sys.executable, "-c", PLAIN, file, given, made], check=True)
    with np.load(made) as outputs:
        return dict(outputs)


KINDS_OF_OPS = pytest.mark.parametrize("exports", ["own", "standard"])


def domains(file: Path) -> set[str]:
    """The domains of the ops of a model."""
    return {node.domain for node in onnx.load(file, load_external_data=False).graph.node}


@KINDS_OF_OPS
def test_an_exported_graph_runs_in_plain_onnx_runtime(exports: str, path: Path, tmp_path: Path) -> None:
    params = backbay.BackendParams(options={"exports": exports, "precision": "exact"})
    with backbay.open(path, backend="onnx", params=params) as backend, backend.new_context() as ctx:
        backend.load()
        embedding, norm, w, h, e = (
            backend.get(name) for name in ("token_embd", "blk.0.norm", "blk.0.w", "blk.0.h", "blk.0.e")
        )
        assert embedding and norm and w and h and e
        tokens, experts = ctx.from_ints([3, 1, 4]), ctx.from_ints([[0, 2], [1, 1], [2, 0]])
        cache = ctx.zeros(DType.F32, 256, 6, row_axis=1)
        x = w.mulmat(ctx, embedding.rows(ctx, tokens).rms_norm(ctx, norm))
        ctx.forward(cache.set_rows(ctx, x, tokens))
        y, z = h.mulmat(ctx, x), e.mulmat_id(ctx, x.reshape(ctx, 256, 1, 3), experts)
        flat, held = y.reshape(ctx, 24), cache.slice(ctx, 1, 0, 5)
        ctx.compute(y, z, flat, held)
        expected = {"y": y, "z": z, "flat": flat, "held": held, "cache_out": cache}
        numbers = {name: tensor.numpy() for name, tensor in expected.items()}
        cache.from_floats(np.zeros(cache.size, np.float32))
        named = {"tokens": tokens, "experts": experts, "cache": cache}
        results = {name: expected[name] for name in ("y", "z", "flat", "held")}
        file = ctx.export(tmp_path / "out", {**named, **results})
        fed = {name: tensor.numpy() for name, tensor in named.items()}
    assert (domains(file) == {""}) == (exports == "standard")
    graph = onnx.load(file, load_external_data=False).graph
    for value, array in ((value, {**fed, **numbers}[value.name]) for value in (*graph.input, *graph.output)):
        assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == list(array.shape)
    outputs = run_plainly(file, fed)
    assert sorted(outputs) == sorted(numbers)
    for name, wanted in numbers.items():
        np.testing.assert_allclose(outputs[name], wanted, rtol=1e-4, atol=1e-4)


def test_the_model_of_the_examples_is_exported_and_agrees(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("tiny_model", EXAMPLES / "tiny_model.py")
    assert spec and spec.loader
    tiny_model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny_model)
    tiny_model.write_model(tmp_path / "tiny.gguf")
    exact = backbay.BackendParams(options={"precision": "exact"})
    with (
        backbay.open(tmp_path / "tiny.gguf", backend="onnx", params=exact) as backend,
        backend.new_context() as ctx,
    ):
        backend.load()
        scores = tiny_model.forward(backend, ctx)
        ctx.compute(scores)
        expected = scores.numpy()
        file = ctx.export(tmp_path / "tiny", {"scores": scores})
    (words,) = [value.name for value in onnx.load(file, load_external_data=False).graph.input]
    outputs = run_plainly(file, {words: np.arange(24, dtype=np.int32) * 4 % tiny_model.WORDS})
    np.testing.assert_allclose(outputs["scores"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [3, 70])  # 70: ONNX Runtime's op for all heads at once
def test_attention_is_exported_in_standard_ops(tokens: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    query, key, value = (rng.standard_normal((count, 2, 16)).astype(np.float32) for count in (tokens, 80, 80))
    params = backbay.BackendParams(options={"exports": "standard"})
    with backbay.open(None, backend="onnx", params=params) as backend, backend.new_context() as ctx:
        q, k, v = (ctx.from_floats(each) for each in (query, key, value))
        y = q.scaled_dot_product_attention(ctx, k, v, None, scale=0.25)
        ctx.compute(y)
        expected = y.numpy()
        file = ctx.export(tmp_path, {"q": q, "k": k, "v": v, "y": y})
        shapes = [each.numpy() for each in (q, k, v)]
    assert domains(file) == {""}
    outputs = run_plainly(file, dict(zip("qkv", shapes, strict=True)))
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5, atol=1e-5)


def test_ops_without_a_standard_form_are_refused(tmp_path: Path) -> None:
    params = backbay.BackendParams(options={"exports": "standard"})
    with backbay.open(None, backend="onnx", params=params) as backend, backend.new_context() as ctx:
        state, query = ctx.zeros(DType.F32, 8, 8, 2, 1), ctx.zeros(DType.F32, 8, 2, 3, 1)
        gate = ctx.zeros(DType.F32, 1, 2, 3, 1)
        ctx.forward(state.delta_rule(ctx, query, query, query, gate, gate))
        with pytest.raises(backbay.BackbayError, match="LinearAttention, which has no form in standard"):
            ctx.export(tmp_path)


def test_names_that_clash_or_are_unknown_are_refused(tmp_path: Path) -> None:
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        x, other = ctx.from_floats([1.0]), ctx.from_floats([1.0])
        y = x.sqr(ctx)
        ctx.forward(y.neg(ctx))
        for names, why in (
            ({"v1": x}, "taken"),
            ({"": x}, "taken"),
            ({"x": x, "again": x}, "has a name already"),
            ({"x": other}, "neither a leaf of the graph nor a result"),
            ({"x": y}, "neither a leaf of the graph nor a result"),
        ):
            with pytest.raises(backbay.BackbayError, match=why):
                ctx.export(tmp_path, names)


def test_there_must_be_something_to_export(tmp_path: Path) -> None:
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        ctx.from_floats([1.0])
        with pytest.raises(backbay.BackbayError, match="nothing to export"):
            ctx.export(tmp_path)


def test_weights_must_be_loaded_to_be_exported(path: Path, tmp_path: Path) -> None:
    with backbay.open(path, backend="onnx") as backend, backend.new_context() as ctx:
        w = backend.get("blk.0.w")
        assert w is not None
        ctx.forward(w.mulmat(ctx, ctx.zeros(DType.F32, 256, 1)))
        with pytest.raises(backbay.NotComputedError, match="load"):
            ctx.export(tmp_path)


def test_a_backend_that_writes_no_models_says_so(tmp_path: Path) -> None:
    with backbay.open(None, backend="cpu_ref") as backend, backend.new_context() as ctx:
        ctx.forward(ctx.from_floats([1.0]).sqr(ctx))
        with pytest.raises(backbay.BackbayError, match="'cpu_ref' writes no models"):
            ctx.export(tmp_path)
