"""The causal cache: keys of plans, ranges, refusals, and going back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cache_attention import HEAD, KV_HEADS, Attention, opened, state, step_of, turned

import backbay
from backbay import (
    BackbayError,
    BackendParams,
    CacheConfig,
    CacheFullError,
    DType,
    DTypeError,
    ShapeError,
)
from backbay_engine.cache import CacheSizes, CausalCache
from backbay_engine.steps.step import Step

INSTALLED = sorted(backbay.backends())
REFERENCE: Any = backbay.backends()["cpu_ref"].load()


# -- steps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSTALLED)
def test_a_decode_step_within_a_bucket_traces_compiles_and_allocates_nothing(name: str) -> None:
    backend, cache = opened(name)
    with backend:
        attention = Attention(backend, cache, layers=2)
        attention.step([0] * 5 + [1] * 3 + [2])
        attention.step([0, 1, 2])
        before, keys = backend.counters, set(attention.kept)
        for _ in range(40):
            attention.step([0, 1, 2])
        after = backend.counters
        assert set(attention.kept) == keys
        assert (after.traced_nodes, after.compilations, after.bytes_allocated) == (
            before.traced_nodes, before.compilations, before.bytes_allocated,
        )  # fmt: skip
        assert after.runs == before.runs + 40


def test_keys_hold_for_a_bucket_of_steps() -> None:
    _, cache = opened()
    keys = [cache.plan(step_of(cache, [0])).key for _ in range(520)]
    assert len(set(keys)) == 3
    assert [keys.index(key) for key in dict.fromkeys(keys)] == [0, 256, 512]


def test_histories_are_at_least_256_multiples_of_what_the_backend_wants_and_within_the_store() -> None:
    class Padded(REFERENCE):
        def cache_config(self) -> CacheConfig:
            return CacheConfig(cache_padding=96, mask_batch_padding=8)

    backend = backbay.open(None, backend=Padded)
    cache = CausalCache(turned)
    cache.open(backend, CacheSizes(2, 500, 64, DType.F32))
    assert cache.cells.count == 1056
    histories = {cache.plan(step_of(cache, [n % 2])).history for n in range(1000)}
    assert histories == {768, 1056}


def test_a_range_begins_where_its_sequences_do_if_that_makes_it_much_shorter() -> None:
    _, cache = opened(sizes=CacheSizes(3, 4096, 64, DType.F32))
    for _ in range(64):
        cache.plan(step_of(cache, [0] * 32))
    plan = cache.plan(step_of(cache, [1] * 8))
    assert (plan.first, plan.history) == (2048, 256)
    plan = cache.plan(step_of(cache, [0, 1]))
    assert (plan.first, plan.history) == (0, 2304)


@pytest.mark.parametrize("name", INSTALLED)
def test_a_range_that_begins_late_holds_what_its_sequences_see(name: str) -> None:
    backend, cache = opened(name)
    with backend:
        attention = Attention(backend, cache)
        for _ in range(9):
            attention.step([0] * 60)
        attention.step([1] * 5)
        attention.step([1])
        assert {key[1][:2] for key in attention.kept if key[0] < 60} == {(512, 256)}
        attention.step([1, 0])


def test_a_step_that_only_reserves_takes_no_room() -> None:
    backend, cache = opened()
    before = state(cache)
    plan = cache.worst(step_of(cache, [0, 1]))
    with backend.new_context() as ctx:
        cache.bind(ctx, plan)
    assert plan.history == cache.cells.count
    assert state(cache) == before


def test_the_memory_of_layers_is_measured_without_allocating_any() -> None:
    with backbay.open(None, backend="cpu_ref", params=BackendParams(alloc_memory=False)) as backend:
        cache = CausalCache(turned)
        cache.open(backend, CacheSizes(2, 128, 16, DType.F16))
        step = step_of(cache, [0] * 16)
        Attention(backend, cache, layers=3)._find(step, cache.worst(step))
        report = backend.memory().cpu
        assert [entry.size for entry in report.cache[:3]] == [2 * 2 * KV_HEADS * HEAD * 256] * 3


# -- what is refused -------------------------------------------------------------------------------------


def test_a_full_cache_names_sequence_need_and_room_and_changes_nothing() -> None:
    _, cache = opened(sizes=CacheSizes(2, 10, 64, DType.F32))
    cache.plan(step_of(cache, [0] * 6 + [1]))
    before = state(cache)
    with pytest.raises(CacheFullError, match="sequence 0 needs 5 cells, 4 are free") as caught:
        cache.plan(step_of(cache, [1, 1, 0, 0, 0, 0, 0]))
    assert (caught.value.sequence, caught.value.need, caught.value.room) == (0, 5, 4)
    assert state(cache) == before


def test_a_step_too_large_for_a_window_changes_nothing_not_even_what_has_left_it() -> None:
    _, cache = opened(sizes=CacheSizes(2, 100, 4, DType.F32), window=3)
    for _ in range(3):
        cache.plan(step_of(cache, [0] * 4))
    before = state(cache)
    with pytest.raises(CacheFullError, match="sequence 1 needs 12 cells, 11 are free"):
        cache.plan(step_of(cache, [1] * 12))
    assert state(cache) == before
    assert cache.plan(step_of(cache, [1] * 11)).cells.size == 11


def test_a_step_goes_on_where_its_sequence_ends() -> None:
    _, cache = opened()
    cache.plan(step_of(cache, [0, 0]))
    step = step_of(cache, [0, 0])
    for positions in ([3, 4], [1, 2], [2, 4], [2, 2]):
        wrong = Step(step.tokens, np.array(positions, np.int32), step.sequences, step.outputs)
        with pytest.raises(BackbayError, match="continues at position"):
            cache.plan(wrong)
    with pytest.raises(BackbayError, match=r"sequence must be in \[0, 3\), got 3"):
        cache.plan(Step(step.tokens, step.positions, step.sequences + 3, step.outputs))


def test_a_dtype_that_the_backend_cannot_hold_is_refused_with_those_that_it_can() -> None:
    class Plain(REFERENCE):
        def cache_config(self) -> CacheConfig:
            return CacheConfig(permuted_v=True, dtypes=(DType.F32, DType.F16, DType.Q8_0))

    backend = backbay.open(None, backend=Plain)
    with pytest.raises(DTypeError, match="cannot hold a cache of q4_0; it can hold f32, f16, q8_0"):
        CausalCache(turned).open(backend, CacheSizes(1, 32, 8, DType.Q4_0))
    with pytest.raises(DTypeError, match=r"permutes values.*cannot be q8_0: take one of f32, f16"):
        CausalCache(turned).open(backend, CacheSizes(1, 32, 8, DType.Q8_0))


def test_heads_that_are_no_whole_blocks_are_refused() -> None:
    backend, cache = opened(sizes=CacheSizes(1, 32, 8, DType.Q8_0))
    with backend.new_context() as ctx:
        bound = cache.bind(ctx, cache.plan(step_of(cache, [0])))
        x = ctx.from_floats(np.zeros((1, 2, 48)))
        with pytest.raises(DTypeError, match="heads of 48 cannot be stored as q8_0, in blocks of 32"):
            bound.put(ctx, 0, x, x)


def test_a_layer_keeps_its_sizes_and_is_put_before_it_is_got() -> None:
    backend, cache = opened()
    with backend.new_context() as ctx:
        bound = cache.bind(ctx, cache.plan(step_of(cache, [0])))
        with pytest.raises(BackbayError, match="layer 4 has nothing in this cache: put comes first"):
            bound.get(ctx, 4)
        x, y = ctx.from_floats(np.zeros((1, 2, 8))), ctx.from_floats(np.zeros((1, 1, 8)))
        bound.put(ctx, 4, x, x)
        with pytest.raises(ShapeError, match=r"holds .* = \(8, 8, 2, None\), got \(8, 8, 1, None\)"):
            bound.put(ctx, 4, y, y)
        with pytest.raises(ShapeError, match="must have the same heads and tokens"):
            bound.put(ctx, 4, x, y)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"memory": 4}, "memory is for a window or chunks"),
        ({"chunk": -1}, "chunk must be at least 1, got -1"),
    ],
)
def test_limits_that_make_no_sense_are_refused(how: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CausalCache(turned, **how)


def test_a_cache_is_opened_before_it_is_used_and_only_once() -> None:
    cache = CausalCache(turned)
    assert cache.used == 0
    step = Step(*np.zeros((4, 1), np.int32))
    for use in (lambda: cache.plan(step), lambda: cache.can_resume(0, 0), lambda: cache.remove(0, 0)):
        with pytest.raises(BackbayError, match="not open"):
            use()
    with backbay.open(None, backend="cpu_ref") as backend:
        cache.open(backend, CacheSizes(1, 8, 8))
        with pytest.raises(BackbayError, match="open already"):
            cache.open(backend, CacheSizes(1, 8, 8))
        cache.plan(step)
        cache.close()
        with pytest.raises(BackbayError, match="not open"):
            cache.plan(step)
        cache.open(backend, CacheSizes(1, 8, 8))
        cache.plan(step)
        with pytest.raises(ValueError, match="batch must be at least 1"):
            CausalCache(None).open(backend, CacheSizes(1, 8, 0))


# -- going back ------------------------------------------------------------------------------------------


def test_a_rolled_back_step_leaves_everything_as_it_was() -> None:
    _, cache = opened(window=5)
    cache.plan(step_of(cache, [0] * 4 + [1] * 3))
    cache.copy_prefix(0, 2, 3)
    before = state(cache)
    step = step_of(cache, [2, 2, 0, 1, 1])
    cache.plan(step)
    cache.rollback(step)
    assert state(cache) == before


def test_a_copied_prefix_moves_no_data_and_takes_no_cell() -> None:
    backend, cache = opened()
    attention = Attention(backend, cache)
    attention.step([0] * 6)
    used, runs = cache.used, backend.counters.runs
    cache.copy_prefix(0, 1, 4)
    assert (cache.used, backend.counters.runs) == (used, runs)
    attention.keys[1], attention.values[1] = attention.keys[0][:4], attention.values[0][:4]
    attention.step([1, 0, 1])
    cache.remove(0, 0)
    attention.step([1])
    cache.remove(1, 0)
    assert cache.used == 0


def test_a_prefix_longer_than_its_source_is_refused() -> None:
    _, cache = opened()
    cache.plan(step_of(cache, [0] * 3))
    before = state(cache)
    with pytest.raises(BackbayError, match="sequence 0 has 3 positions, so a prefix of 4 is impossible"):
        cache.copy_prefix(0, 1, 4)
    assert state(cache) == before
    cache.copy_prefix(0, 0, 2)
    assert cache.cells.end == [2, 0, 0]


def test_a_snapshot_of_a_window_fits_where_other_sequences_have_theirs() -> None:
    _, cache = opened(sizes=CacheSizes(2, 100, 4, DType.F32), window=3)
    for _ in range(3):
        cache.plan(step_of(cache, [0] * 4))
    saved = cache.contents(0)
    assert (saved.number("begin"), saved.number("end")) == (9, 12)  # the cache still holds all 12
    cache.remove(0, 0)
    for _ in range(3):
        cache.plan(step_of(cache, [1] * 4))
    cache.restore(0, saved)
    assert cache.cells.end == [12, 12]
    cache.plan(step_of(cache, [0] * 4))


def test_a_window_can_go_back_as_far_as_its_memory() -> None:
    _, cache = opened(sizes=CacheSizes(1, 400, 4, DType.F32), window=4, memory=7)
    for _ in range(50):
        cache.plan(step_of(cache, [0] * 4))
    cache.plan(step_of(cache, [0] * 4))
    cache.cells.drop(0, 200 - 7)  # what room is made of, when it is needed
    assert [n for n in range(205) if cache.can_resume(0, n)] == list(range(196, 205))
    assert (cache.last_resumable(0, 195), cache.last_resumable(0, 198)) == (0, 198)
    cache.remove(0, 100)
    with pytest.raises(
        BackbayError,
        match=r"cannot continue at position 100: .* before 100 are dropped; remove the whole sequence",
    ):
        cache.plan(step_of(cache, [0]))
    cache.remove(0, 0)
    cache.plan(step_of(cache, [0]))
