"""Moving cells: keys are rotated, shared cells are copied, and ranges become short again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cache_attention import HEAD, KV_HEADS, Attention, opened, state, step_of, turned

import backbay
from backbay import (
    BackbayError,
    Context,
    DType,
    ShapeError,
    Tensor,
)
from backbay_engine.cache import CacheSizes, CausalCache
from backbay_engine.errors import CacheShiftError

INSTALLED = sorted(backbay.backends())
REFERENCE: Any = backbay.backends()["cpu_ref"].load()


# -- shifting --------------------------------------------------------------------------------------------


def test_nothing_changes_where_keys_cannot_be_turned() -> None:
    def fails(ctx: Context, layer: int, keys: Tensor, offsets: Tensor) -> Tensor:
        raise RuntimeError("no such thing")

    for shift, error in ((None, CacheShiftError), (fails, RuntimeError)):
        backend, cache = opened(shift=shift)
        attention = Attention(backend, cache)
        attention.step([0] * 8)
        before = state(cache)
        with pytest.raises(error):
            cache.remove(0, 2, 4)
        assert state(cache) == before
        attention.step([0, 0])


def test_a_shift_that_changes_the_shape_of_keys_is_refused() -> None:
    def halves(ctx: Context, layer: int, keys: Tensor, offsets: Tensor) -> Tensor:
        return keys.slice(ctx, 0, 0, HEAD // 2).contiguous(ctx)

    backend, cache = opened(shift=halves)
    attention = Attention(backend, cache)
    attention.step([0] * 8)
    with pytest.raises(ShapeError, match="layer 0: the shift made"):
        cache.remove(0, 2, 4)
    attention.step([0])


def test_cells_that_others_share_are_copied_and_not_turned_for_them() -> None:
    backend, cache = opened()
    attention = Attention(backend, cache)
    attention.step([0] * 10)
    cache.copy_prefix(0, 1, 8)
    attention.keys[1], attention.values[1] = attention.keys[0][:8], attention.values[0][:8]
    cache.remove(0, 2, 5)
    for history in (attention.keys, attention.values):
        history[0] = history[0][:2] + history[0][5:]
    attention.step([0, 1, 0, 1])
    assert cache.used == 14 + 3  # positions 5, 6 and 7 of the prefix are there twice


def test_a_range_stays_where_there_is_no_room_to_copy_what_is_shared() -> None:
    backend, cache = opened(sizes=CacheSizes(2, 8, 8, DType.F32))
    attention = Attention(backend, cache)
    attention.step([0] * 8)
    cache.copy_prefix(0, 1, 8)
    cache.cells.owners[8:] = 1  # as if others had them
    cache.cells.free = 0
    before = state(cache)
    with pytest.raises(
        CacheShiftError, match="5 later cells are shared with other sequences, and only 0 cells are free"
    ):
        cache.remove(0, 1, 3)
    assert state(cache) == before


def test_a_window_keeps_a_range_if_what_would_come_into_sight_is_gone() -> None:
    _, cache = opened(sizes=CacheSizes(1, 100, 4, DType.F32), window=6)
    for _ in range(6):
        cache.plan(step_of(cache, [0] * 4))
    cache.cells.drop(0, 18)
    before = state(cache)
    with pytest.raises(CacheShiftError, match="would see positions from 17 on, which are dropped"):
        cache.remove(0, 19, 21)
    assert state(cache) == before


class Breaks(REFERENCE):
    """A backend that fails within a graph, on demand."""

    left = -1

    def run_node(self, node: Any, arrays: Any) -> None:
        if node.op.name == "set_rows":
            if self.left == 0:
                raise BackbayError("broken")
            self.left -= 1
        super().run_node(node, arrays)


def test_a_shift_that_breaks_half_way_leaves_no_wrong_keys() -> None:
    backend = backbay.open(None, backend=Breaks)
    cache = CausalCache(turned)
    cache.open(backend, CacheSizes(2, 100, 16, DType.F32))
    attention = Attention(backend, cache, layers=2)
    attention.step([0] * 10 + [1] * 4)
    backend.left = 1
    with pytest.raises(BackbayError, match="broken"):
        cache.remove(0, 3, 5)
    backend.left = -1
    assert cache.cells.end == [3, 4]
    for history in (attention.keys, attention.values):
        history[0] = history[0][:3]
    attention.step([0, 1, 0])


# -- moving to the front ---------------------------------------------------------------------------------


def spread(attention: Attention) -> None:
    """Two sequences, far apart, with an idle one between them."""
    for sequence, steps in ((0, 1), (1, 6), (0, 1), (2, 1)):
        for _ in range(steps):
            attention.step([sequence] * 40)


@pytest.mark.parametrize("idle", ["removed", "shortened", "kept"])
@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.few(4)
def test_cells_move_to_the_front_once_a_range_was_long_for_long(name: str, idle: str) -> None:
    backend, cache = opened(name, bucket=32)
    with backend:
        attention = Attention(backend, cache, layers=2)
        spread(attention)
        left = {"removed": 0, "shortened": 40, "kept": 240}[idle]
        cache.remove(1, left)
        attention.keys[1], attention.values[1] = attention.keys[1][:left], attention.values[1][:left]
        attention.step([0, 2])
        step = step_of(cache, [0, 2])
        assert cache.plan(step).history == 384
        cache.rollback(step)
        for _ in range(8):
            attention.step([0, 2])
        step = step_of(cache, [0, 2])
        plan = cache.plan(step)
        assert (plan.first, plan.history) == (0, 160)
        cache.rollback(step)
        for _ in range(3):
            attention.step([2, 0, 1])
        for sequence in range(3):
            cache.remove(sequence, 0)
        assert cache.used == 0


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_move_that_breaks_leaves_all_where_it_was(after: int) -> None:
    backend = backbay.open(None, backend=Breaks)
    cache = CausalCache(turned, bucket=32)
    cache.open(backend, CacheSizes(3, 600, 64, DType.F32))
    attention = Attention(backend, cache)
    spread(attention)
    for _ in range(6):
        attention.step([0, 2])
    before = [state(cache)[0], *state(cache)[2:4]]
    cache._wasted = 1 << 30  # now it is time
    backend.left = after
    with pytest.raises(BackbayError, match="broken"):
        attention.step([0, 2])
    backend.left = -1
    assert [state(cache)[0], *state(cache)[2:4]] == before
    for _ in range(3):
        attention.step([0, 2, 1])


def test_cells_stay_where_there_is_no_room_to_move_through() -> None:
    _, cache = opened(sizes=CacheSizes(3, 64, 64, DType.F32), bucket=8)
    cache.plan(step_of(cache, [0] * 64))
    cache.plan(step_of(cache, [1] * 60))
    cache.plan(step_of(cache, [2] * 50))
    cache.cells.cut(1, 4)
    cache.cells.owners[cache.cells.owners == 0] = 1  # as if others had them
    before, cache._wasted = state(cache)[-1], 1 << 30
    cache.cells.free = 10
    cache.cells.owners[180:] = 0
    plan = cache.plan(step_of(cache, [1, 2]))
    assert plan.history > 100
    assert [held[:4] for held in state(cache)[-1]] == [held[:4] for held in before]


# -- what is not to be trusted ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSTALLED)
def test_numbers_that_are_none_do_no_harm_once_they_are_wiped(name: str) -> None:
    backend, cache = opened(name)
    with backend:
        attention = Attention(backend, cache)
        attention.step([0] * 4)
        plan = cache.plan(step_of(cache, [1] * 8))
        with backend.new_context() as ctx:
            x = ctx.from_floats(np.full((8, KV_HEADS, HEAD), np.nan))
            cache.bind(ctx, plan).put(ctx.layer(0), 0, x, x)
            ctx.compute()
        cache.wipe(1)
        assert cache.used == 4
        attention.step([0, 2, 0])
