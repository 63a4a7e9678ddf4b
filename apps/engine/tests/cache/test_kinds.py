"""The layered cache, the cache of encoder outputs, and the cache of recurrent states."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from cache_layers import Cross, Mamba, output_of, run_of, step_of

import backbay
from backbay import BackbayError, CacheConfig, CacheFullError, Context, DType, ShapeError, Tensor
from backbay_engine.cache import Cache, CacheSizes, CausalCache, EncoderCache, LayeredCache, RecurrentCache
from backbay_engine.cache.cells.contents import CacheContents
from backbay_engine.errors import CacheShiftError, ForeignSnapshotError

INSTALLED = sorted(backbay.backends())
REFERENCE: Any = backbay.backends()["cpu_ref"].load()
SMALL = CacheSizes(sequences=2, capacity=32, batch=8, dtype=DType.F32)


def as_they_are(ctx: Context, layer: int, keys: Tensor, offsets: Tensor) -> Tensor:
    return keys.rope(ctx, offsets, 8, 100.0)


# -- several caches --------------------------------------------------------------------------------------


def two_kinds(**second: Any) -> tuple[LayeredCache, CausalCache, CausalCache]:
    windowed, whole = (
        CausalCache(as_they_are, window=4),
        CausalCache(second.pop("shift", as_they_are), **second),
    )
    layered = LayeredCache([windowed, whole], kind=lambda layer: layer % 2)
    layered.open(backbay.open(None, backend="cpu_ref"), SMALL)
    return layered, windowed, whole


def ends(*caches: CausalCache) -> list[list[int]]:
    return [list(cache.cells.end) for cache in caches]


def test_layers_put_and_get_in_their_own_cache() -> None:
    layered, windowed, whole = two_kinds()
    step = step_of(*run_of(0, 0, 6))
    with windowed.storage.backend.new_context() as ctx:
        bound = layered.bind(ctx, layered.plan(step))
        x = ctx.from_floats(np.ones((6, 1, 8)))
        for layer in range(4):
            bound.put(ctx, layer, x, x)
        seen = [int((bound.get(ctx, layer).mask.numpy()[5] == 0).sum()) for layer in range(4)]
    assert seen == [4, 6, 4, 6]
    assert sorted(windowed.storage.layers) == [0, 2]
    assert sorted(whole.storage.layers) == [1, 3]
    assert layered.used == 12


def test_a_step_that_one_refuses_none_takes() -> None:
    layered, windowed, whole = two_kinds()
    layered.plan(step_of(*run_of(0, 0, 8)))
    whole.cells.capacity = 10  # as if it held less than the other
    with pytest.raises(CacheFullError):
        layered.plan(step_of(*run_of(0, 8, 8)))
    assert ends(windowed, whole) == [[8, 0], [8, 0]]


def test_a_removal_that_one_refuses_none_does() -> None:
    layered, windowed, whole = two_kinds(shift=None)
    layered.plan(step_of(*run_of(0, 0, 8)))
    with pytest.raises(CacheShiftError, match="cannot rotate the keys"):
        layered.remove(0, 5, 7)
    assert ends(windowed, whole) == [[8, 0], [8, 0]]
    layered.remove(0, 5)
    assert ends(windowed, whole) == [[5, 0], [5, 0]]


def test_a_removal_that_breaks_half_way_leaves_all_alike() -> None:
    layered, windowed, whole = two_kinds()
    layered.plan(step_of(*run_of(0, 0, 8)))
    removal = layered.removal(0, 5, 7)
    whole.storage.close()  # the memory goes away between check and deed
    with pytest.raises(BackbayError):
        removal()
    assert ends(windowed, whole) == [[5, 0], [5, 0]]


def test_a_layered_cache_resumes_where_all_can() -> None:
    layered, windowed, whole = two_kinds()
    for n in range(0, 24, 4):
        layered.plan(step_of(*run_of(0, n, 4)))
    windowed.cells.drop(0, 18)
    assert [n for n in range(26) if layered.can_resume(0, n)] == [21, 22, 23, 24]
    assert (layered.last_resumable(0, 23), layered.last_resumable(0, 20)) == (23, 0)
    layered.copy_prefix(0, 1, 22)
    assert ends(windowed, whole) == [[24, 22], [24, 22]]
    layered.rollback(step_of(*run_of(1, 20, 2)))
    assert ends(windowed, whole) == [[24, 20], [24, 20]]


def test_a_layered_cache_opens_all_or_none() -> None:
    backend = backbay.open(None, backend="cpu_ref")
    first, second = CausalCache(None), CausalCache(None)
    second.open(backend, SMALL)
    layered = LayeredCache([first, second], kind=lambda layer: 0)
    with pytest.raises(BackbayError, match="open already"):
        layered.open(backend, SMALL)
    assert first.used == 0
    second.close()
    layered.open(backend, SMALL)
    layered.close()
    with pytest.raises(ValueError, match="needs at least one cache"):
        LayeredCache([], kind=lambda layer: 0)


@pytest.mark.parametrize(
    "one",
    [
        CausalCache(None),
        EncoderCache(4),
        RecurrentCache(),
        LayeredCache([CausalCache(None)], kind=lambda layer: 0),
    ],
)
def test_a_plan_of_another_cache_is_refused(one: Cache) -> None:
    backend = backbay.open(None, backend="cpu_ref")
    other = RecurrentCache() if isinstance(one, CausalCache) else CausalCache(None)
    one.open(backend, SMALL)
    other.open(backend, SMALL)
    with backend.new_context() as ctx, pytest.raises(BackbayError, match="belongs to another kind of cache"):
        one.bind(ctx, other.plan(step_of((0, 0))))


@pytest.mark.parametrize(
    ("cache", "numbers"),
    [(EncoderCache(4), {"count": 1, "position": -5}), (RecurrentCache(), {"end": -3})],
)
def test_contents_with_negative_numbers_are_refused(cache: Cache, numbers: dict[str, int]) -> None:
    with backbay.open(None, backend="cpu_ref") as backend:
        cache.open(backend, SMALL)
        with pytest.raises(ForeignSnapshotError, match="must be 0 or more"):
            cache.restore(0, CacheContents({}, numbers))


# -- encoders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSTALLED)
def test_every_token_sees_the_output_of_its_sequence(name: str) -> None:
    with backbay.open(None, backend=name) as backend:
        cache = EncoderCache(length=20)
        cache.open(backend, CacheSizes(3, 64, 8, DType.F32))
        cross, made = Cross(backend, cache), {0: output_of(20, 1), 2: output_of(13, 2)}
        cache.expect(0, 20)
        cache.expect(2, 13)
        steps = [
            (step_of((0, 0), (0, 1), (2, 0)), made),
            (step_of((2, 1)), {}),
            (step_of((0, 2), (2, 2)), {}),
        ]
        steps += [(step_of((0, 3), (2, 3)), {})]
        for step, put in steps:
            got = cross.step(step, put)
            for i, sequence in enumerate(step.sequences.tolist()):
                np.testing.assert_allclose(got[i], cross.expected(i, made[sequence]), atol=1e-5)
            assert cross.present.tolist() == [1.0] * step.size
        before, kept = backend.counters, len(cross.kept)
        cross.step(step_of((0, 4), (2, 4)), {})
        after = backend.counters
        assert (kept, before.traced_nodes, before.compilations, before.bytes_allocated) == (
            len(cross.kept), after.traced_nodes, after.compilations, after.bytes_allocated,
        )  # fmt: skip
        assert cache.used == 33


def test_a_mask_is_left_out_where_all_is_seen() -> None:
    backend = backbay.open(None, backend="cpu_ref")
    cache = EncoderCache(length=6)
    cache.open(backend, SMALL)
    cross = Cross(backend, cache)
    cache.expect(1, 5)
    cross.step(step_of((1, 0)), {1: output_of(5, 0)})
    cross.step(step_of((1, 1), (1, 2)), {})
    assert [kept[5] for kept in cross.kept.values()] == [True, True]


def test_who_has_no_output_is_told_so_and_gets_numbers() -> None:
    class Padded(REFERENCE):
        def cache_config(self) -> CacheConfig:
            return CacheConfig(cache_padding=8, mask_batch_padding=4)

    backend = backbay.open(None, backend=Padded)
    cache = EncoderCache(length=5)
    cache.open(backend, SMALL)
    cross = Cross(backend, cache)
    with backend.new_context() as ctx:
        bound = cache.bind(ctx, cache.plan(step_of((0, 0))))
        assert bound.is_empty
        with pytest.raises(BackbayError, match="has no encoder's output in this step"):
            bound.get(ctx, 0)
    cache.expect(1, 5)
    got = cross.step(step_of((0, 1), (1, 0)), {1: output_of(5, 0)})
    assert np.isfinite(got).all()
    assert cross.present.tolist() == [0.0, 1.0]
    np.testing.assert_allclose(got[1], cross.expected(1, output_of(5, 0)), atol=1e-5)


def test_the_mask_of_a_step_is_in_the_hosts_share_and_not_kept() -> None:
    with backbay.open(None, "cpu_ref") as backend, backend.new_context() as ctx:
        cache = EncoderCache(length=2048)
        cache.open(backend, CacheSizes(sequences=2, capacity=64, batch=64, dtype=DType.F32))
        cache.expect(0, 2000)
        plan = cache.plan(step_of(*run_of(0, 0, 32), *run_of(1, 0, 32)))
        bound = cache.bind(ctx, plan)
        tracemalloc.start()
        bound.fill(plan)
        kept, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        mask = bound._masks[0].nbytes
        assert kept < mask / 10
        assert mask <= most <= cache.host_nbytes + mask / 10


def test_an_output_goes_with_the_position_that_brought_it() -> None:
    cache = EncoderCache(length=4)
    cache.open(backbay.open(None, backend="cpu_ref"), SMALL)
    cache.plan(step_of(*run_of(0, 0, 3)))
    cache.expect(0, 4)
    cache.plan(step_of(*run_of(0, 3, 2)))
    cache.copy_prefix(0, 1, 3)
    assert cache.used == 4
    cache.remove(0, 1, 2)  # now it is at position 2
    cache.copy_prefix(0, 1, 3)
    cache.remove(0, 3)
    cache.remove(0, 0)
    assert cache.used == 4  # the other one has it still
    cache.remove(1, 2, 3)
    assert cache.used == 0


def test_an_output_is_put_once_and_must_fit() -> None:
    cache = EncoderCache(length=4)
    cache.open(backbay.open(None, backend="cpu_ref"), SMALL)
    with pytest.raises(CacheFullError, match="sequence 0 needs 5 cells, 4 are free"):
        cache.expect(0, 5)
    cache.expect(0, 4)
    step = step_of((0, 0))
    cache.plan(step)
    with pytest.raises(BackbayError, match="has an encoder's output already; remove it first"):
        cache.expect(0, 2)
    cache.rollback(step)
    assert cache.used == 0
    assert len(cache.plan(step).cells) == 4  # it is still expected


# -- recurrent -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSTALLED)
def test_states_are_carried_shared_and_gone_back_to(name: str) -> None:
    with backbay.open(None, backend=name) as backend:
        cache = RecurrentCache(checkpoints=2, interval=3)
        cache.open(backend, CacheSizes(3, 64, 8))
        layer = Mamba(backend, cache)
        layer.step((0, 3))
        layer.step((0, 3), (1, 3))
        layer.step((1, 1), (0, 1), (2, 1))
        layer.step((0, 3), (2, 3))
        # 7 is too near to 6 to be kept for long; it is there as the step to 10 might have failed
        assert [n for n in range(12) if cache.can_resume(0, n)] == [0, 3, 6, 7, 10]
        cache.copy_prefix(0, 1, 6)
        layer.fed[1] = layer.fed[0][:6]
        assert (cache.last_resumable(0, 5), cache.last_resumable(0, 99)) == (3, 10)
        cache.remove(0, 6)
        del layer.fed[0][6:]
        layer.step((0, 3), (1, 3))
        failed = step_of(*run_of(0, 9, 2))
        cache.plan(failed)
        cache.rollback(failed)
        layer.step((0, 1), (1, 1), (2, 1))
        cache.remove(0, 0)
        del layer.fed[0][:]
        layer.step((0, 2), (2, 2))
        before = backend.counters
        layer.step((0, 2), (2, 2))
        after = backend.counters
        assert (before.traced_nodes, before.compilations, before.bytes_allocated) == (
            after.traced_nodes, after.compilations, after.bytes_allocated,
        )  # fmt: skip
        for sequence in range(3):
            cache.remove(sequence, 0)
        assert cache.used == 0


def test_rows_are_enough_for_as_many_checkpoints_as_are_kept() -> None:
    cache = RecurrentCache(checkpoints=3, interval=1)
    cache.open(backbay.open(None, backend="cpu_ref"), CacheSizes(2, 400, 8))
    for n in range(40):
        step = step_of((0, n), (1, n))
        cache.plan(step)
        if n % 5 == 4:
            cache.rollback(step)
            cache.plan(step)
        if n % 7 == 6:
            cache.copy_prefix(0, 1, n)
            cache.plan(step_of((1, n)))
    assert [n for n in range(41) if cache.can_resume(0, n)] == [0, 36, 37, 38, 39, 40]
    assert cache.used <= cache.rows - 1


def test_a_state_that_is_gone_is_not_gone_on_from() -> None:
    cache = RecurrentCache(checkpoints=0)
    cache.open(backbay.open(None, backend="cpu_ref"), SMALL)
    for n in range(4):
        cache.plan(step_of((0, n)))
    with pytest.raises(BackbayError, match="continues at position 4, not 3"):
        cache.plan(step_of((0, 3)))
    cache.remove(0, 2)
    assert not cache.can_resume(0, 2)
    with pytest.raises(BackbayError, match="its state there is dropped; remove the whole sequence"):
        cache.plan(step_of((0, 2)))
    cache.remove(0, 0)
    cache.plan(step_of((0, 0)))


def test_nothing_is_taken_out_of_the_middle_of_a_state() -> None:
    cache = RecurrentCache()
    cache.open(backbay.open(None, backend="cpu_ref"), SMALL)
    cache.plan(step_of(*run_of(0, 0, 4)))
    with pytest.raises(CacheShiftError, match="later states depend on them"):
        cache.remove(0, 1, 2)
    assert cache.can_resume(0, 4)


def test_sequences_take_equally_many_tokens_side_by_side() -> None:
    cache = RecurrentCache()
    assert cache.is_uniform
    assert LayeredCache([CausalCache(None), cache], kind=lambda layer: 0).is_uniform
    cache.open(backbay.open(None, backend="cpu_ref"), SMALL)
    for tokens in ([(0, 0), (0, 1), (1, 0)], [(0, 0), (1, 0), (0, 1)]):
        with pytest.raises(
            BackbayError, match="equally many tokens of each sequence in a step, side by side"
        ):
            cache.plan(step_of(*tokens))
    assert cache.used == 0


def test_a_state_keeps_its_shape() -> None:
    backend = backbay.open(None, backend="cpu_ref")
    cache = RecurrentCache()
    cache.open(backend, SMALL)
    with backend.new_context() as ctx:
        bound = cache.bind(ctx, cache.plan(step_of((0, 0))))
        assert bound.state(ctx, 0, "h", 2, 3).shape == (2, 3, 1)
        with pytest.raises(ShapeError, match=r"layer 0: state 'h' is \[2, 3\], got \[3, 2\]"):
            bound.state(ctx, 0, "h", 3, 2)
        for put in (lambda: bound.put(ctx, 0, None, None), lambda: bound.get(ctx, 0)):
            with pytest.raises(BackbayError, match="layer 0 is recurrent"):
                put()
