"""Rows that are written twice: one of their sources is kept whole."""

import numpy as np
import pytest

from backbay import BackendParams, DType
from backbay_ggml.backend import Ggml
from backbay_ggml.plans.cpu_plan import CpuPlan


@pytest.mark.parametrize("by_graph", [False, True], ids=["ids of a leaf", "ids that the graph finds"])
def test_a_row_that_is_written_twice_is_whole(by_graph: bool):
    wide, times = 1 << 18, 16
    with Ggml(None, BackendParams(num_threads=4)) as backend, backend.new_context() as ctx:
        table = ctx.from_floats(np.zeros((1, wide), np.float32))
        rows = ctx.from_floats(np.repeat(np.arange(times, dtype=np.float32)[:, None], wide, axis=1))
        ids = ctx.from_ints(np.zeros(times, np.int32))
        if by_graph:
            ids = ctx.from_floats(np.zeros((times, 1), np.float32)).argsort(ctx).reshape(ctx, times)
        twice, written = rows.add(ctx, rows), table.set_rows(ctx, rows, ids)
        for _ in range(50):
            ctx.compute(twice, written)
            assert len(np.unique(written.floats())) == 1


def test_only_rows_that_may_repeat_cost_threads(monkeypatch: pytest.MonkeyPatch):
    counts: list[int] = []
    run = CpuPlan._compute

    def noted(self, *given):
        run(self, *given)
        counts.append(self._cplan.n_threads)

    monkeypatch.setattr(CpuPlan, "_compute", noted)
    with Ggml(None, BackendParams(num_threads=2)) as backend, backend.new_context() as ctx:
        table = ctx.zeros(DType.F32, 4, 8)
        rows = ctx.from_floats(np.ones((2, 4), np.float32))
        ids = ctx.from_ints([3, 3])
        written = table.set_rows(ctx, rows, ids)
        ctx.compute(written)
        ids.from_ints([3, 5])
        ctx.compute(written)
    assert counts == [1, 2]


def test_several_rows_of_nothing_are_written():
    with Ggml(None, BackendParams(num_threads=2)) as backend, backend.new_context() as ctx:
        table = ctx.from_floats(np.ones((2, 4), np.float32)).reshape(ctx, 4, 2, 1)
        rows, ids = ctx.empty(DType.F32, 4, 3, 0), ctx.empty(DType.I32, 3, 0, 1)
        written, doubled = table.slice(ctx, 2, 0, 0).set_rows(ctx, rows, ids), table.scale(ctx, 2.0)
        ctx.compute(doubled, written)
        assert doubled.floats().tolist() == [2.0] * 8
