"""Masks: windows, chunks and spans."""

from __future__ import annotations

import numpy as np
import pytest
from cache_attention import Attention, opened, step_of

from backbay import DType
from backbay_engine.cache import CacheSizes, CausalCache
from backbay_engine.cache.cells.cell_table import CellTable, token_runs
from backbay_engine.cache.cells.masks import AttentionWindow, MaskRows
from backbay_engine.steps.step import Step

# -- masks -----------------------------------------------------------------------------------------------


def seen(cache: CausalCache, step: Step, *, spans: bool = True) -> list[list[int]]:
    """For each token of a step, the positions of its sequence that the mask reveals."""
    plan = cache.plan(step)
    with cache.storage.backend.new_context() as ctx:
        bound = cache.bind(ctx, plan)
        x = ctx.from_floats(np.zeros((step.size, 1, 8)))
        bound.put(ctx, 0, x, x)
        mask = bound.get(ctx, 0, spans=spans).mask.numpy()
    assert set(np.unique(mask)) <= {0.0, -np.inf}
    found = []
    for i, sequence in enumerate(step.sequences.tolist()):
        cells = (np.flatnonzero(mask[i] == 0) + plan.first).tolist()
        held = cache.cells.table[sequence, : cache.cells.end[sequence]].tolist()
        found.append(sorted(held.index(cell) for cell in cells))
    assert (mask[step.size :] == -np.inf).all()
    return found


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]),
        ({"window": 3}, [[2, 3, 4], [3, 4, 5]]),
        ({"window": 1}, [[4], [5]]),
        ({"chunk": 5}, [[0, 1, 2, 3, 4], [5]]),
        ({"chunk": 5, "window": 2}, [[3, 4], [5]]),
    ],
)
def test_tokens_see_their_window_and_their_chunk(how: dict[str, int], expected: list[list[int]]) -> None:
    _, cache = opened(sizes=CacheSizes(2, 32, 8, DType.F32), **how)
    cache.plan(step_of(cache, [0, 1, 0, 0, 0]))
    assert seen(cache, step_of(cache, [0, 0])) == expected
    assert seen(cache, step_of(cache, [1])) == [[0, 1] if how.get("window") != 1 else [1]]


def test_tokens_of_a_span_see_each_other_and_nothing_else_that_is_later() -> None:
    _, cache = opened(sizes=CacheSizes(2, 32, 8, DType.F32), window=2)
    cache.plan(step_of(cache, [0, 1]))
    step = step_of(cache, [0, 0, 0, 0, 0, 1, 1], [-1, 7, 7, 7, -1, 7, -1])
    assert seen(cache, step) == [[0, 1], [1, 2, 3, 4], [2, 3, 4], [2, 3, 4], [4, 5], [0, 1], [1, 2]]
    cache.rollback(step)
    alone = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [0, 1], [1, 2]]
    assert seen(cache, step, spans=False) == alone


def test_rows_kept_up_to_date_are_those_made_anew() -> None:
    rng = np.random.default_rng(1)
    for visibility in (
        AttentionWindow(),
        AttentionWindow(window=7),
        AttentionWindow(chunk=6),
        AttentionWindow(window=9, chunk=5),
    ):
        cells, kept, rows = CellTable(4, 300, 1200), MaskRows(visibility, 0), np.full((4, 1200), -np.inf)
        for turn in range(250):
            chosen = rng.permutation(4)[: rng.integers(1, 5)].astype(np.int32)
            ends = np.array([cells.end[n] for n in chosen], np.int32)
            step = Step(ends, ends, chosen, ends)
            runs = token_runs(step)
            cells.extend(runs, cells.lowest_free(len(chosen)))
            if turn % 3:  # other contexts take the other steps
                fresh = np.zeros((4, 1200))
                MaskRows(visibility, 0).fill_anew(fresh, cells, runs, None)
                kept.fill(rows, cells, runs)
                n = len(chosen)
                assert np.array_equal(rows[:n], fresh[:n])
            if turn % 17 == 16:
                cells.cut(int(chosen[0]), int(rng.integers(cells.end[chosen[0]] + 1)))
            if turn % 5 == 4 and visibility.reach is not None:
                cells.drop(int(chosen[0]), cells.end[chosen[0]] - visibility.reach)


def test_masks_of_many_tokens_share_an_array_and_do_not_mind() -> None:
    backend, cache = opened()
    attention = Attention(backend, cache)
    for _ in range(3):
        attention.step([0] * 19 + [1])
        attention.step([2] * 20 + [0])
    assert len(attention.kept) == 2


def test_the_extent_of_a_sequence_follows_its_window() -> None:
    cells, rng = CellTable(2, 500, 200), np.random.default_rng(0)
    for _ in range(300):
        sequence = int(rng.integers(2))
        at = np.array([sequence], np.int32)
        step = Step(at, np.array([cells.end[sequence]], np.int32), at, at)
        cells.extend(token_runs(step), cells.lowest_free(1))
        cells.drop(sequence, cells.end[sequence] - 40)
        held = cells.of(sequence)
        assert cells.extent([sequence]) == (held.min(), held.max() + 1)
