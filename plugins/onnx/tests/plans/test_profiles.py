"""Times of nodes, from the log of a session."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backbay
from backbay import DType
from backbay.plugin import CPU


@pytest.fixture
def backend() -> Iterator[Any]:
    with backbay.open(None, backend="onnx") as opened:
        yield opened


def names_of(run: Any) -> list[str]:
    return [run.graph.nodes[index].op.name for timing in run.timings for index in timing.nodes]


def test_each_run_of_a_session_has_the_times_of_its_own_nodes(backend: Any) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.ones((300, 300), np.float32))
        y = x.mulmat(ctx, x).softmax(ctx)
        with backend.profiling() as runs:
            for _ in range(3):
                ctx.compute(y)
    for run in runs:
        assert set(names_of(run)) == {"mulmat", "softmax"}
        assert {timing.device for timing in run.timings} == {CPU}
        assert 0 < sum(timing.seconds for timing in run.timings) <= run.seconds
    assert runs[0].timings != runs[1].timings


def test_a_second_profile_has_times_too(backend: Any) -> None:
    with backend.new_context() as ctx:
        y = ctx.from_floats([1.0, 2.0]).neg(ctx)
        for _ in range(2):
            with backend.profiling() as runs:
                ctx.compute(y)
            assert names_of(runs[0]) == ["neg"]


def test_contexts_of_one_structure_share_a_log_and_keep_their_runs_apart(backend: Any) -> None:
    def context(columns: int) -> tuple[Any, Any]:
        ctx = backend.new_context()
        x = ctx.from_floats(np.ones((columns, 64), np.float32))
        return ctx, x.neg(ctx).exp(ctx)

    (one, few), (two, many) = context(1), context(20000)
    with backend.profiling() as runs:
        for _ in range(3):
            one.compute(few)
            two.compute(many)
    for small, large in zip(runs[::2], runs[1::2], strict=True):
        for run in (small, large):
            assert sum(timing.seconds for timing in run.timings) <= run.seconds
            assert set(names_of(run)) == {"neg", "exp"}


def test_the_steps_of_a_loop_count_as_the_op_that_loops(backend: Any) -> None:
    with backend.new_context() as ctx:
        states = ctx.from_floats(np.zeros((1, 2, 16, 16), np.float32))
        q, k, v = (ctx.from_floats(np.ones((1, 5, 2, 16), np.float32)) for _ in range(3))
        gate, beta = (ctx.from_floats(np.ones((1, 5, 2, 1), np.float32) * 0.5) for _ in range(2))
        y = states.delta_rule(ctx, q, k, v, gate, beta)
        with backend.profiling() as runs:
            ctx.compute(y)
    assert set(names_of(runs[0])) == {"delta_rule"}
    assert sum(timing.seconds for timing in runs[0].timings) <= runs[0].seconds


def test_a_write_outside_of_the_bound_window_is_profiled_too(backend: Any) -> None:
    with backend.new_context() as store, backend.new_context() as ctx:
        cache = store.zeros(DType.F32, 4, 64, row_axis=1)
        ids = ctx.from_ints(np.array([2], np.int64))
        rows = ctx.from_floats(np.ones((1, 4), np.float32))
        ctx.forward(cache.set_rows(ctx, rows, ids))
        y = cache.view(ctx, 0, (4, 8), (16,)).neg(ctx)
        with backend.profiling() as runs:
            ctx.compute(y)
            ids.from_ints(np.array([60], np.int64))
            ctx.compute(y)
        assert cache.numpy()[60].tolist() == [1.0] * 4
    assert all(run.timings for run in runs)


def test_a_profile_leaves_no_files(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with backend.new_context() as ctx:
        y = ctx.from_floats([1.0, 2.0]).neg(ctx)
        with backend.profiling():
            ctx.compute(y)
        assert list(tmp_path.iterdir()) == []
        with backend.profiling():
            ctx.compute(y)
            assert len(list(tmp_path.iterdir())) == 1
            backend.close()
    assert list(tmp_path.iterdir()) == []
