"""An exported graph is a valid model that plain ONNX Runtime runs with the same result."""

from __future__ import annotations

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
from backbay_onnx.export import export


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
fed = numpy.load(sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
by_rank = {1: fed["tokens"], 2: fed["experts"]}
inputs = {
    value.name: fed["cache"] if value.name.startswith("state") else by_rank[len(value.shape)]
    for value in session.get_inputs()
}
numpy.savez(sys.argv[3], **dict(zip([value.name for value in session.get_outputs()], session.run(None, inputs))))
"""


def run_plainly(file: Path, fed: dict[str, Any]) -> dict[str, Any]:
    """In a process that knows nothing of backbay."""
    given, made = file.with_name("given.npz"), file.with_name("made.npz")
    np.savez(given, **fed)
    subprocess.run([sys.executable, "-c", PLAIN, file, given, made], check=True)
    with np.load(made) as outputs:
        return dict(outputs)


def test_an_exported_graph_runs_in_plain_onnx_runtime(path: Path, tmp_path: Path) -> None:
    with backbay.open(path, backend="onnx") as backend, backend.new_context() as ctx:
        backend.load()
        embedding, norm, w, h, e = (
            backend.get(name) for name in ("token_embd", "blk.0.norm", "blk.0.w", "blk.0.h", "blk.0.e")
        )
        assert embedding and norm and w and h and e
        tokens, experts = ctx.from_ints([3, 1, 4]), ctx.from_ints([[0, 2], [1, 1], [2, 0]])
        cache = ctx.zeros(DType.F32, 256, 6)
        x = w.mulmat(ctx, embedding.rows(ctx, tokens).rms_norm(ctx, norm))
        ctx.forward(cache.set_rows(ctx, x, tokens))
        y, z = h.mulmat(ctx, x), e.mulmat_id(ctx, x.reshape(ctx, 256, 1, 3), experts)
        ctx.compute(y, z)
        expected = [y.numpy(), z.numpy(), cache.numpy()]
        cache.from_floats(np.zeros(cache.size, np.float32))
        file = export(ctx, tmp_path / "out")
        fed = {"tokens": tokens.numpy(), "experts": experts.numpy(), "cache": cache.numpy()}
    onnx.checker.check_model(str(file))
    outputs = run_plainly(file, fed)
    states = [name for name in outputs if name.startswith("state")]
    results = sorted(
        (name for name in outputs if name.startswith("result")), key=lambda name: outputs[name].ndim
    )
    for name, wanted in zip([*results, *states], expected, strict=True):
        np.testing.assert_allclose(outputs[name], wanted, rtol=1e-4, atol=1e-4)


def test_there_must_be_something_to_export(tmp_path: Path) -> None:
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        ctx.from_floats([1.0])
        with pytest.raises(backbay.BackbayError, match="nothing to export"):
            export(ctx, tmp_path)


def test_only_this_backend_exports(tmp_path: Path) -> None:
    with backbay.open(None, backend="cpu_ref") as backend, backend.new_context() as ctx:
        ctx.forward(ctx.from_floats([1.0]).sqr(ctx))
        with pytest.raises(backbay.BackbayError, match="only the onnx backend"):
            export(ctx, tmp_path)
