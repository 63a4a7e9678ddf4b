"""One session per structure: what may share one, what must not, and what stays after contexts are closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backbay
from backbay import BackendParams, CancelledError, DType

HEAD, HEADS, CAPACITY = 8, 4, 48


@pytest.fixture
def backend() -> Iterator[Any]:
    with backbay.open(None, backend="onnx") as opened:
        yield opened


class Step:
    """A decoder step over a cache, as the engine traces it; the model's numbers are leaves of one context."""

    def __init__(self, backend: Any) -> None:
        self.home = backend.new_context()
        rng = np.random.default_rng(5)

        def draw(*shape: int) -> Any:
            return self.home.from_floats(rng.standard_normal(shape).astype(np.float32) * 0.3)

        width = HEAD * HEADS
        self.wq, self.wk, self.wo = (draw(width, width) for _ in range(3))
        self.norm = draw(width)
        self.cache = self.home.zeros(DType.F32, width, CAPACITY, row_axis=1)

    def run(self, backend: Any, tokens: int, first: int, history: int) -> Any:
        width = HEAD * HEADS
        rng = np.random.default_rng(tokens + first)
        with backend.new_context() as ctx:
            x = ctx.from_floats(rng.standard_normal((tokens, width)).astype(np.float32))
            places = np.arange(first, first + tokens)
            positions, ids = ctx.from_ints(places), ctx.from_ints(places)
            visible = np.arange(history)[None, :] <= places[:, None]
            mask = ctx.from_floats(np.where(visible, 0, -np.inf).astype(np.float32))
            h = x.rms_norm(ctx, self.norm)
            q = self.wq.mulmat(ctx, h).reshape(ctx, HEAD, HEADS, tokens).rope(ctx, positions, HEAD, 1e4)
            k = self.wk.mulmat(ctx, h).reshape(ctx, HEAD, HEADS, tokens).rope(ctx, positions, HEAD, 1e4)
            ctx.forward(self.cache.set_rows(ctx, k.reshape(ctx, width, tokens), ids))
            seen = self.cache.view(ctx, 0, (HEAD, HEADS, history), (4 * HEAD, 4 * width))
            y = q.scaled_dot_product_attention(ctx, seen, seen, mask, scale=HEAD**-0.5)
            out = self.wo.mulmat(ctx, y.reshape(ctx, width, tokens)).add(ctx, x)
            ctx.compute(out)
            return out.numpy()


SHAPES = [(8, 0, 16), (1, 8, 16), (4, 9, 16), (1, 13, 32), (3, 14, 32), (HEADS, 17, 32), (1, 21, CAPACITY)]


def test_step_shapes_of_one_model_share_one_session_and_are_right(backend: Any) -> None:
    with backbay.open(None, backend="cpu_ref") as reference:
        ours, theirs = Step(backend), Step(reference)
        for shape in SHAPES:
            np.testing.assert_allclose(
                ours.run(backend, *shape), theirs.run(reference, *shape), rtol=2e-5, atol=2e-5
            )
    assert backend.sessions.created == 1


def test_a_cache_is_bound_as_far_as_it_is_read(backend: Any) -> None:
    Step(backend).run(backend, *SHAPES[0])
    lowered = next(iter(backend.sessions._compiled.values()))[0].lowered
    assert len(lowered.checks) == 1
    assert not any(node.op_type == "Slice" for node in lowered.model.graph.node)


def test_a_cache_is_bound_from_the_first_cell_that_is_read(backend: Any) -> None:
    with backend.new_context() as ctx:
        cache = ctx.empty(DType.F32, 2, 8, row_axis=1).from_floats(np.arange(16.0))
        rows, ids = ctx.from_floats([[1.0, 2.0]]), ctx.from_ints([5])
        ctx.forward(cache.set_rows(ctx, rows, ids))
        seen = cache.view(ctx, 4 * 8, (1, 2, 3), (4, 8)).permute(ctx, 0, 2, 1).scale(ctx, 1.0)  # cells 4 to 6
        first = cache.slice(ctx, 1, 4, 7).slice(ctx, 0, 1, 2).scale(ctx, 1.0)
        for place in (5, 6, 7, 0):
            ids.from_ints([place])
            expected = cache.numpy().copy()
            expected[place] = [1, 2]
            ctx.compute(seen, first)
            np.testing.assert_array_equal(cache.numpy(), expected)
            np.testing.assert_array_equal(seen.numpy()[..., 0], expected[4:7].T)
            np.testing.assert_array_equal(first.numpy(), expected[4:7, 1:])
    first, _ = (
        backend.sessions._compiled.values()
    )  # the second holds all of the cache, for places before and behind
    assert len(first[0].lowered.checks) == 1


def test_the_first_cell_that_is_read_is_no_part_of_the_structure(backend: Any) -> None:
    with backend.new_context() as home:
        cache = home.empty(DType.F32, 2, 8, row_axis=1).from_floats(np.arange(16.0))
        for first in (0, 3, 5):
            with backend.new_context() as ctx:
                ctx.forward(cache.set_rows(ctx, ctx.from_floats([[0.0, 7.0]]), ctx.from_ints([first])))
                seen = cache.view(ctx, 8 * first, (2, 3), (8,)).sum_rows(ctx)
                ctx.compute(seen)
                assert list(seen.floats()) == [7, 4 * first + 5, 4 * first + 9]
    assert backend.sessions.created == 1


def test_a_cache_that_is_written_with_its_own_rows_is_bound_whole(backend: Any) -> None:
    with backend.new_context() as ctx:
        cache = ctx.empty(DType.F32, 2, 4, row_axis=1).from_floats(np.arange(8.0))
        ctx.forward(cache.set_rows(ctx, cache, ctx.from_ints([3, 2, 1, 0])))
        seen = cache.view(ctx, 0, (2, 2), (8,)).scale(ctx, 1.0)
        ctx.compute(seen)
        assert seen.numpy().tolist() == [[6, 7], [4, 5]]
        assert cache.numpy().tolist() == [[6, 7], [4, 5], [2, 3], [0, 1]]


def test_a_write_behind_what_is_read_lands_where_it_belongs(backend: Any) -> None:
    with backbay.open(None, backend="cpu_ref") as reference:
        ours, theirs = Step(backend), Step(reference)
        for step in (ours, theirs):
            step.run(*((backend if step is ours else reference), 2, 20, 16))  # cells 20 and 21, history 16
        np.testing.assert_allclose(ours.cache.numpy(), theirs.cache.numpy(), rtol=2e-5, atol=2e-5)
        assert ours.cache.numpy()[20:22].any()
        np.testing.assert_allclose(
            ours.run(backend, 1, 22, 32), theirs.run(reference, 1, 22, 32), rtol=2e-5, atol=2e-5
        )


def test_a_kept_context_moves_between_bound_window_and_whole_cache(backend: Any) -> None:
    with backend.new_context() as ctx:
        cache = ctx.zeros(DType.F32, 2, 6, row_axis=1)
        rows, ids = ctx.from_floats([[1.0, 2.0]]), ctx.from_ints([1])
        ctx.forward(cache.set_rows(ctx, rows, ids))
        seen = cache.view(ctx, 0, (2, 4), (8,)).sum_rows(ctx)
        for place, expected in ((1, [0, 3, 0, 0]), (5, [0, 3, 0, 0]), (2, [0, 3, 3, 0])):
            ids.from_ints([place])
            ctx.compute(seen)
            assert list(seen.floats()) == expected
        assert list(cache.numpy().sum(axis=1)) == [0, 3, 3, 0, 0, 3]


def test_a_window_that_is_read_before_it_is_written_leaves_the_rest_alone(backend: Any) -> None:
    with backend.new_context() as ctx:
        cache = ctx.empty(DType.F32, 2, 6, row_axis=1).from_floats(np.ones((6, 2), np.float32))
        before = cache.view(ctx, 0, (2, 4), (8,)).sum_rows(ctx)
        ctx.forward(before, cache.set_rows(ctx, ctx.from_floats([[4.0, 5.0]]), ctx.from_ints([1])))
        ctx.compute(before)
        assert list(before.floats()) == [2, 2, 2, 2]
        assert list(cache.numpy().sum(axis=1)) == [2, 9, 2, 2, 2, 2]


def test_the_cache_is_written_in_place(backend: Any) -> None:
    Step(backend).run(backend, *SHAPES[0])
    compiled = next(iter(backend.sessions._compiled.values()))[0]
    assert [state.in_place for state in compiled.lowered.states] == [True]


def test_a_state_that_is_read_before_it_is_written_is_not_written_in_place(backend: Any) -> None:
    with backend.new_context() as ctx:
        state = ctx.from_floats([1.0, 2.0, 3.0])
        ctx.compute(state.scale(ctx, 2.0).copy(ctx, state))
        assert list(state.floats()) == [2.0, 4.0, 6.0]
    compiled = next(iter(backend.sessions._compiled.values()))[0]
    assert [state.in_place for state in compiled.lowered.states] == [False]


def test_a_graph_that_a_guard_refuses_gets_a_session_of_its_own(backend: Any) -> None:
    def add(columns: int) -> Any:
        with backend.new_context() as ctx:
            x, y = (
                ctx.from_floats(np.ones((4, 6), np.float32)),
                ctx.from_floats(np.ones((columns, 6), np.float32)),
            )
            z = x.add(ctx, y)
            ctx.compute(z)
            return z.numpy()

    for columns in (1, 4, 2):  # one, as many, and to be tiled
        np.testing.assert_array_equal(add(columns), np.full((4, 6), 2.0))
    assert backend.sessions.created == 2


def test_many_contexts_leave_one_session_and_no_memory(backend: Any) -> None:
    step = Step(backend)
    before = backend.memory().total()
    for _ in range(50):
        step.run(backend, *SHAPES[1])
    assert backend.sessions.created == 1
    assert backend.memory().total() == before


def test_a_kept_context_runs_again_without_compiling(backend: Any) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats([1.0, 2.0])
        y = x.sqr(ctx)
        for value in (3.0, 5.0):
            ctx.compute(y)
            x.from_floats([value, value])
            ctx.compute(y)
            assert list(y.floats()) == [value**2] * 2
        assert ctx.counters.compilations == 1


def test_a_quantized_leaf_is_read_anew_when_it_was_written(backend: Any) -> None:
    import gguf

    def blocks(value: float) -> Any:
        numbers = np.full((2, 32), value, np.float32)
        return gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)

    with backend.new_context() as ctx:
        w = ctx.from_bytes(DType.Q8_0, blocks(1.0).tobytes(), 32, 2)
        y = w.mulmat(ctx, ctx.from_floats(np.ones((1, 32), np.float32)))
        for value in (1.0, 3.0):
            w.from_bytes(blocks(value).tobytes())
            ctx.compute(y)
            np.testing.assert_allclose(y.floats(), [32 * value] * 2, rtol=1e-3)


def test_a_run_can_be_cancelled(backend: Any) -> None:
    cancel = threading.Event()
    with backend.new_context() as ctx:
        w = ctx.from_floats(np.full((700, 700), 1e-3, np.float32))
        x = w
        for _ in range(400):
            x = w.mulmat(ctx, x)
        ctx.reserve()
        threading.Timer(0.05, cancel.set).start()
        started = time.monotonic()
        with pytest.raises(CancelledError):
            ctx.compute(x, cancel=cancel)
        assert time.monotonic() - started < 5
    with backend.new_context() as ctx:  # and the backend still works
        y = ctx.from_floats([2.0]).sqr(ctx)
        ctx.compute(y, cancel=threading.Event())
        assert list(y.floats()) == [4.0]


def test_two_threads_compute_in_contexts_of_their_own(backend: Any) -> None:
    wrong: list[Any] = []

    def work(value: float) -> None:
        for _ in range(20):
            with backend.new_context() as ctx:
                y = ctx.from_floats([value]).sqr(ctx)
                ctx.compute(y)
                if list(y.floats()) != [value**2]:
                    wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_measuring_allocates_nothing_and_reports_the_same() -> None:
    def measured(alloc: bool) -> int:
        params = BackendParams(alloc_memory=alloc)
        with backbay.open(None, backend="onnx", params=params) as backend, backend.new_context() as ctx:
            y = ctx.empty(DType.F32, 64, 8).sqr(ctx)
            ctx.forward(y).reserve()
            return int(backend.memory().total())

    assert measured(False) == measured(True) > 0


def test_fences_around_buffers_stay_whole() -> None:
    params = BackendParams(debug=backbay.Debug(poison=True, guard_bytes=64))
    with backbay.open(None, backend="onnx", params=params) as backend:
        step = Step(backend)
        assert np.isfinite(step.run(backend, *SHAPES[0])).all()
