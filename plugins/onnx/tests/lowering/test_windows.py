"""Caches that are bound only as far as a graph reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from decoder_step import SHAPES, Step

import backbay
from backbay import DType


@pytest.fixture
def backend() -> Iterator[Any]:
    with backbay.open(None, backend="onnx") as opened:
        yield opened


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


@pytest.mark.parametrize(("second", "subtractions"), [(4, 1), (2, 2)])
def test_caches_that_are_read_from_the_same_cell_on_share_the_places_of_rows(
    backend: Any, second: int, subtractions: int
) -> None:
    with backend.new_context() as ctx:
        caches = [ctx.zeros(DType.F32, 2, 8, row_axis=1) for _ in range(2)]
        rows, ids = ctx.from_floats([[1.0, 2.0], [3.0, 4.0]]), ctx.from_ints([5, 4])
        seen = []
        for cache, first in zip(caches, (4, second), strict=True):
            ctx.forward(cache.set_rows(ctx, rows, ids))
            seen.append(cache.view(ctx, 8 * first, (2, 4), (8,)).scale(ctx, 1.0))
        ctx.compute(*seen)
        [[compiled]] = backend.sessions._compiled.values()
        ops = [node.op_type for node in compiled.lowered.model.graph.node]
        assert (ops.count("Sub"), ops.count("ScatterND")) == (subtractions, 2)
        for cache, first, found in zip(caches, (4, second), seen, strict=True):
            np.testing.assert_array_equal(cache.numpy()[4:6], [[3, 4], [1, 2]])
            np.testing.assert_array_equal(found.numpy(), cache.numpy()[first : first + 4])
