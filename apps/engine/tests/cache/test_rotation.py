"""Keys in quantized caches are rotated before they are rounded, and nothing that moves, saves or reads them can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_attention import HEAD, Attention, opened, step_of
from small_llama import EOS, write_small_llama

import backbay
from backbay import BackbayError, Context, DType, Tensor
from backbay_engine import load
from backbay_engine.cache import CacheSizes
from backbay_engine.cache.cells import storage
from backbay_engine.cache.cells.rotation import KeyRotation, block_of, rotation_matrix

LONG: dict[str, Any] = {"context": 192, "batch": 64, "num_threads": 1}
IDS = np.random.default_rng(1).integers(1, 250, 160).tolist()
SLOWEST, OUTLIER = 63, 25.0  # a feature of each key, 50 times as large as the others


def holds(name: str) -> bool:
    with backbay.open(None, backend=name) as backend:
        return DType.Q4_0 in backend.cache_config().dtypes


HOLDING = [name for name in sorted(backbay.backends()) if holds(name)]


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with an outlier in each key."""
    path = tmp_path_factory.mktemp("rotation") / "loud.gguf"
    return write_small_llama(path, head=64, key_outlier=(SLOWEST, OUTLIER))


@pytest.fixture(scope="module")
def exact(loud: Path) -> np.ndarray:
    with load(loud, "cpu_ref", kv_dtype="f32", **LONG) as llm:
        return llm.logits(IDS)


# -- the matrix ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 64, 128])
def test_a_rotation_undoes_itself_and_spreads_one_feature_and_equal_ones(size: int) -> None:
    matrix = rotation_matrix(size).astype(np.float64)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix @ matrix, np.eye(size), atol=1e-6)
    np.testing.assert_allclose(np.abs(matrix), size**-0.5, rtol=1e-6)
    assert np.abs(matrix.sum(0)).max() < 1.5  # of ones, whose sum of squares stays


def test_blocks_divide_heads() -> None:
    assert [block_of(n) for n in (32, 64, 96, 192, 128, 256)] == [32, 64, 32, 64, 128, 128]


# -- what it saves ---------------------------------------------------------------------------------------


def loss(path: Path, backend: str, exact: np.ndarray, dtype: str) -> float:
    with load(path, backend, kv_dtype=dtype, **LONG) as llm:
        return nmse(llm.logits(IDS), exact)


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0"])
@pytest.mark.parametrize("backend", HOLDING)
def test_outliers_of_keys_cost_little(
    backend: str, dtype: str, loud: Path, exact: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotated = loss(loud, backend, exact, dtype)
    monkeypatch.setattr(storage, "ROTATED", frozenset())
    assert rotated < loss(loud, backend, exact, dtype) / 10


def test_a_mean_is_lost_before_keys_are_stored_and_not_where_scores_meet_a_cap() -> None:
    mean = np.full((1, HEAD), 40, np.float32)
    with backbay.open(None, "cpu_ref") as backend, backend.new_context() as ctx:
        key = ctx.from_floats(mean[None] + 1)
        for capped, expected in ((False, 1.0), (True, 41.0)):
            rotation = KeyRotation(ctx, HEAD, 1)
            if capped:
                rotation.keep_scores()
            rotation.centre(mean * np.float32("nan"))
            rotation.centre(mean)
            stored = rotation.store(ctx, key)
            same = rotation.restore(ctx, stored)
            ctx.compute(stored, same)
            assert np.sqrt((stored.numpy() ** 2).mean()) == pytest.approx(expected, rel=1e-5)
            np.testing.assert_allclose(same.numpy(), key.numpy(), rtol=1e-5)
            if not capped:
                with pytest.raises(BackbayError, match="no sinks and no softcap can follow"):
                    rotation.keep_scores()


def slowly_turned(ctx: Context, layer: int, keys: Tensor, offsets: Tensor) -> Tensor:
    """Half of the pairs turn by less than 1 within 600 positions."""
    return keys.rope(ctx, offsets, HEAD, 1e6)


@pytest.mark.parametrize("shift", [slowly_turned, None])
def test_a_cache_learns_the_mean_of_keys_at_all_positions(shift: Any) -> None:
    backend, cache = opened(sizes=CacheSizes(1, 600, 64, DType.Q4_0), shift=shift)
    with backend, backend.new_context() as ctx:
        step = step_of(cache, [0] * 40)
        bound, positions = cache.bind(ctx, cache.plan(step)), ctx.from_ints(step.positions)
        key = ctx.from_floats(np.random.default_rng(0).standard_normal((40, 1, HEAD)) / 10 + 5)
        bound.put(ctx, 0, key if shift is None else shift(ctx, 0, key, positions), key)
        ctx.compute()
        assert cache.learns
        cache.learn(0)
        cache.remove(0, 0)
        assert cache.used == 0
        rotation = cache.storage.layers[0].rotation
        assert rotation is not None
        everywhere = ctx.from_floats(np.full((600, 1, HEAD), 5, np.float32))
        places = ctx.from_ints(np.arange(600, dtype=np.int32))
        found = rotation.store(ctx, everywhere if shift is None else shift(ctx, 0, everywhere, places))
        ctx.compute(found)
        left = (found.numpy() ** 2).mean() / 25  # 1 without the mean
        assert left < (0.01 if shift is None else 0.6)


# -- moving, sharing, saving ----------------------------------------------------------------------------


class Close(Attention):
    """Attention whose results are right but for the rounding to 4 bits."""

    def compare(self, found: np.ndarray, expected: np.ndarray) -> None:
        assert nmse(found, expected) < 0.06


def forget(attention: Attention, low: int, high: int) -> None:
    for history in (attention.keys, attention.values):
        history[0] = history[0][:low] + history[0][high:]


def opened_in_4_bits(name: str) -> Close:
    return Close(*opened(name, CacheSizes(3, 600, 64, DType.Q4_0)))


@pytest.mark.parametrize("name", HOLDING)
def test_keys_turn_with_their_positions(name: str) -> None:
    attention = opened_in_4_bits(name)
    with attention.backend:
        attention.step([0] * 30)
        for low, high in ((2, 5), (7, 8)):
            attention.cache.remove(0, low, high)
            forget(attention, low, high)
        attention.step([0] * 3)


def test_a_shift_that_forgets_the_rotation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = opened_in_4_bits("cpu_ref")
    attention.step([0] * 30)
    monkeypatch.setattr(storage.LayerKeysAndValues, "restored", lambda self, ctx, keys: keys)
    attention.cache.remove(0, 2, 5)
    monkeypatch.undo()
    forget(attention, 2, 5)
    with pytest.raises(AssertionError):
        attention.step([0] * 3)


@pytest.mark.parametrize("name", HOLDING)
def test_a_shared_beginning_gives_the_same_answer(name: str, loud: Path) -> None:
    options: dict[str, Any] = {
        "max_tokens": 12,
        "temperature": 0,
        "logit_bias": {EOS: float("-inf")},
        "logprobs": 1,
    }
    with load(loud, name, kv_dtype="q4_0", parallel=2, **LONG) as llm:
        whole = llm.generate(IDS[:90], reuse=False, **options)
        again = llm.generate(IDS[:90], **options)
        assert again.timings.reused_tokens > 80
        assert again.tokens == whole.tokens


@pytest.mark.parametrize("name", HOLDING)
def test_a_snapshot_holds_what_was_put(name: str, loud: Path) -> None:
    with load(loud, "cpu_ref", kv_dtype="f32", **LONG) as right:
        expected = right.save(IDS[:90]).contents.arrays
    with load(loud, name, kv_dtype="q4_0", **LONG) as llm:
        snapshot = llm.save(IDS[:90])
        for part in ("keys.0", "values.0"):
            assert nmse(snapshot.contents.arrays[part].astype(np.float32), expected[part]) < 0.02
        llm.forget()
        llm.restore(snapshot)
        again = llm.save(IDS[:90]).contents.arrays
    for part, array in snapshot.contents.arrays.items():
        assert nmse(again[part].astype(np.float32), array.astype(np.float32)) < 1e-3


# -- what stays as it was ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0])
def test_only_quantized_keys_are_rotated(dtype: DType) -> None:
    backend, cache = opened(sizes=CacheSizes(1, 64, 8, dtype))
    with backend, backend.new_context() as ctx:
        bound = cache.bind(ctx, cache.plan(step_of(cache, [0])))
        key = ctx.zeros(DType.F32, 2 * HEAD, 1, 1)
        bound.put(ctx, 0, key, key.slice(ctx, 0, HEAD, 2 * HEAD))  # a latent vector
        bound.put(ctx, 1, key, ctx.zeros(DType.F32, HEAD, 1, 1))
        assert bound.get(ctx, 0).rotation is None
        assert (bound.get(ctx, 1).rotation is not None) == dtype.is_quantized
