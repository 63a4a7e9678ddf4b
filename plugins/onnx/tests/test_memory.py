"""What is taken is booked, limits hold, and closing gives it back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_file import quantized, write_model

import backbay
from backbay import AllocationStatus, BackendParams, DType, NoMemoryError

K, N = 1024, 2048


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = quantized(np.random.default_rng(1), DType.Q4_0, K, N)
    folder = tmp_path_factory.mktemp("memory")
    return write_model(folder / "model.gguf", {"blk.0.w": (DType.Q4_0, raw)}, block_count=1)


def test_a_limit_is_kept_and_the_failing_entry_marked() -> None:
    params = BackendParams(max_memory={"CPU:0": 1 << 20})
    with backbay.open(None, backend="onnx", params=params) as backend, backend.new_context() as ctx:
        x = ctx.zeros(DType.F32, 1000, 100)
        ctx.forward(x.repeat(ctx, 1, 3))
        with pytest.raises(NoMemoryError) as caught:
            ctx.reserve()
        assert caught.value.memory.cpu.graph.status is AllocationStatus.Failed
        held = backend.memory().total()
        y = x.sum_rows(ctx)  # what fits still runs
        with backend.new_context() as other:
            other.compute(x.sum_rows(other))
        assert backend.memory().total() == held
        assert y.shape == (1, 100)


def test_weights_that_do_not_fit_are_refused_when_opening(path: Path) -> None:
    with pytest.raises(NoMemoryError) as caught:
        backbay.open(path, backend="onnx", params=BackendParams(max_memory={"CPU:0": 1000}))
    assert caught.value.memory.cpu.weights[0].status is AllocationStatus.Failed


def test_a_measured_model_reports_what_a_loaded_one_takes(path: Path) -> None:
    totals = []
    for alloc in (False, True):
        with backbay.open(path, backend="onnx", params=BackendParams(alloc_memory=alloc)) as backend:
            w = backend.get("blk.0.w")
            assert w is not None
            if alloc:
                backend.load()
            with backend.new_context() as ctx:
                ctx.forward(w.mulmat(ctx, ctx.empty(DType.F32, K, 4))).reserve()
                totals.append(backend.memory().total())
    assert totals[0] == totals[1] > path.stat().st_size


def test_what_a_context_took_is_given_back() -> None:
    with backbay.open(None, backend="onnx") as backend:
        for _ in range(3):
            with backend.new_context() as ctx:
                ctx.compute(ctx.zeros(DType.F32, 64, 64).sqr(ctx))
                assert backend.memory().total() > 0
            assert backend.memory().total() == 0
