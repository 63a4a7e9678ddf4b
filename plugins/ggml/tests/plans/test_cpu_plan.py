"""Plans that are computed again and again, side by side, from several threads, and cancelled."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from backbay import (
    BackendParams,
    CancelledError,
    DType,
    NoMemoryError,
    UnsupportedOpError,
)
from backbay_ggml import Ggml


def test_computing_again_takes_new_data_and_compiles_nothing(backend) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats([1, 2, 3])
        y = x.sqr(ctx)
        for factor in (1, 2, 3):
            x.from_floats(np.array([1, 2, 3]) * factor)
            ctx.compute(y)
            assert y.floats().tolist() == [n * n * factor * factor for n in (1, 2, 3)]
        assert (ctx.counters.compilations, ctx.counters.runs) == (1, 3)


def test_a_result_outlives_runs_of_other_contexts(backend) -> None:
    with backend.new_context() as one, backend.new_context() as other:
        a = one.from_floats(np.arange(64)).sqr(one).neg(one)
        b = other.from_floats(np.ones(64)).exp(other).neg(other)
        one.compute(a)
        other.compute(b)
        assert a.floats().tolist() == [-n * n for n in range(64)]


@pytest.mark.fault("two graphs have as many ops, which read other results", "each graph has the right result")
def test_graphs_of_as_many_ops_do_not_share_places(backend) -> None:
    contexts = []
    for size, added in ((8, (0, 1, 2, 3, 4, 5)), (4, (0, 1, 0, 0, 4, 2)), (4, (0, 1, 0, 0, 2, 3))):
        contexts.append(ctx := backend.new_context())
        w, results, expected = ctx.from_floats(np.eye(size) * 2), [ctx.from_floats(np.eye(size))], [1]
        for n in added:
            results.append(w.mulmat(ctx, results[-1]).add(ctx, results[n]))
            expected.append(2 * expected[-1] + expected[n])
        ctx.compute(results[-1])
        assert results[-1].floats()[0] == expected[-1]
    for ctx in contexts:
        ctx.close()


def test_a_larger_context_moves_smaller_ones_without_compiling_them_again(backend) -> None:
    with backend.new_context() as small, backend.new_context() as large:
        x = small.from_floats(np.arange(8))
        y = x.sqr(small).neg(small).exp(small)
        z = x.sqr(small).permute(small, 0).view(small, 4, (3,)).neg(small)
        small.compute(y, z)
        before = y.floats(), z.floats()
        w = large.from_floats(np.ones(4096)).sqr(large).neg(large).exp(large)
        moves = backend.arena.generation
        large.compute(w)
        assert backend.arena.generation > moves
        np.testing.assert_array_equal((y.floats(), z.floats())[0], before[0])
        for _ in range(2):
            small.compute(y, z)
            np.testing.assert_array_equal(y.floats(), before[0])
            np.testing.assert_array_equal(z.floats(), before[1])
            large.compute(w)
            np.testing.assert_allclose(w.floats(), np.full(4096, np.exp(-1)), rtol=1e-6)
        assert (small.counters.compilations, large.counters.compilations) == (1, 1)


def test_many_contexts_of_growing_size_run_in_any_order(backend) -> None:
    contexts, rng = [], np.random.default_rng(0)
    for n in (10, 1000, 30, 5000, 200, 20_000):
        ctx = backend.new_context()
        x = ctx.from_floats(np.arange(n) / n)
        y = x.sqr(ctx).add(ctx, x).softmax(ctx).cumsum(ctx)
        ctx.compute(y)
        contexts.append((ctx, y, y.floats()))
    for index in rng.integers(0, len(contexts), 40):
        ctx, y, expected = contexts[index]
        ctx.compute(y)
        np.testing.assert_array_equal(y.floats(), expected)
    for ctx, *_ in contexts:
        ctx.close()
    assert backend.memory().total() == 0


def test_a_cache_is_written_in_one_context_and_read_in_another(backend) -> None:
    with backend.new_context() as store, backend.new_context() as step:
        cache = store.zeros(DType.F16, 4, 8)
        row, place = step.from_floats([1, 2, 3, 4], 4, 1), step.from_ints([3])
        written = cache.set_rows(step, row, place)
        total = written.cast(step, DType.F32).permute(step, 1, 0).sum_rows(step)
        for n in range(3):
            place.from_ints([n])
            step.compute(total)
            assert total.floats().tolist() == [(n + 1) * k for k in (1, 2, 3, 4)]
        assert cache.numpy()[:4].tolist() == [[1, 2, 3, 4]] * 3 + [[0] * 4]


def test_reads_see_earlier_writes_only(backend) -> None:
    with backend.new_context() as ctx:
        x, y = ctx.from_floats([1, 2]), ctx.from_floats([10, 20])
        before = x.sqr(ctx)
        ctx.forward(before)
        after = y.copy(ctx, x).sqr(ctx)
        ctx.compute(before, after)
        assert (before.floats().tolist(), after.floats().tolist()) == ([1, 4], [100, 400])


def test_two_backends_compute_in_two_threads() -> None:
    def work(seed: int, found: dict[int, bool]) -> None:
        rng = np.random.default_rng(seed)
        w, x = (
            rng.standard_normal((64, 64)).astype(np.float32),
            rng.standard_normal((32, 64)).astype(np.float32),
        )
        with Ggml(None, BackendParams(num_threads=2)) as backend, backend.new_context() as ctx:
            y = ctx.from_floats(w).mulmat(ctx, ctx.from_floats(x)).softmax(ctx)
            ctx.compute(y)
            first = y.floats()
            found[seed] = all(_same(ctx, y, first) for _ in range(30))

    found: dict[int, bool] = {}
    threads = [threading.Thread(target=work, args=(seed, found)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {1: True, 2: True, 3: True}


def _same(ctx, y, first) -> bool:
    ctx.compute(y)
    return bool((y.floats() == first).all())


def test_two_contexts_of_one_backend_take_turns(backend) -> None:
    def work(value: float, wrong: list[float]) -> None:
        with backend.new_context() as ctx:
            x = ctx.from_floats(np.full((64, 64), value))
            y = x.mulmat(ctx, x).sqr(ctx).neg(ctx)
            for _ in range(30):
                ctx.compute(y)
                if not (y.floats() == -((64 * value * value) ** 2)).all():
                    wrong.append(value)

    wrong: list[float] = []
    threads = [threading.Thread(target=work, args=(value, wrong)) for value in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def long_graph(ctx):
    w = ctx.zeros(DType.F32, 512, 512)
    x = w
    for _ in range(200):
        x = w.mulmat(ctx, x)
    return x


def test_other_threads_run_while_ggml_computes(backend) -> None:
    with backend.new_context() as ctx:
        result = long_graph(ctx)
        ctx.reserve()
        steps, done = 0, threading.Event()
        worker = threading.Thread(target=lambda: (ctx.compute(result), done.set()))
        worker.start()
        while not done.wait(0.001):
            steps += 1
        worker.join()
        assert steps > 1


class AfterLooks(threading.Event):
    """It is set after some looks at it, in the midst of a run."""

    looks = 5

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def test_a_running_compute_is_cancelled_before_its_end_and_can_be_run_again(backend) -> None:
    with backend.new_context() as ctx:
        state = ctx.from_floats(np.ones((512, 512), np.float32))
        written = long_graph(ctx).copy(ctx, state)
        ctx.forward(written)
        ctx.reserve()
        with pytest.raises(CancelledError):
            ctx.compute(written, cancel=AfterLooks())
        assert state.floats().all()
        ctx.compute(written, cancel=threading.Event())
        assert not state.floats().any()


def test_a_cancelled_compute_runs_nothing(backend) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats([1, 2])
        cancel = threading.Event()
        cancel.set()
        with pytest.raises(CancelledError):
            ctx.compute(ctx.from_floats([3, 4]).copy(ctx, x), cancel=cancel)
        assert x.floats().tolist() == [1, 2]


def test_a_plan_reports_what_runs(backend) -> None:
    with backend.new_context() as ctx:
        y = ctx.from_floats([1, 2]).sqr(ctx)
        ctx.compute(y)
        assert ctx.recording._plan.report() == ["CPU:0 sqr(f32[2, 1, 1, 1])"]


def test_more_rows_than_ggml_counts_are_refused_with_a_remedy(backend) -> None:
    with backend.new_context() as ctx:
        y = ctx.from_floats([1.0]).repeat_4d(ctx, 1, 2, 1 << 30)
        told = r"backend 'ggml': .* has 2147483648 rows, .* up to 2147483647; take .* a smaller context if it is a cache"
        with pytest.raises(UnsupportedOpError, match=told):
            ctx.compute(y)


@pytest.mark.parametrize("shape", [(1 << 40,), (1, 1 << 40), (1 << 20, 1 << 20, 1 << 20)])
def test_a_tensor_too_large_for_any_memory_is_an_error(backend, shape) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats([1.0])
        with pytest.raises((NoMemoryError, UnsupportedOpError)):
            ctx.compute(x.repeat_4d(ctx, *shape))
        y = x.sqr(ctx)
    with backend.new_context() as ctx:
        y = ctx.from_floats([3.0]).sqr(ctx)
        ctx.compute(y)
        assert y.floats().tolist() == [9.0]
