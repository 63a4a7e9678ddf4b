"""Attention over a past, by native code: sizes, dtypes of caches, masks, sinks, and parts."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import BackendParams, DType, FlashAttention
from backbay_ggml import Ggml
from backbay_ggml.library.library import load_library

PARAMS = BackendParams(flash_attention=FlashAttention.ON, num_threads=2)
CACHES = (DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0)


@pytest.fixture(autouse=True)
def native(native_code, monkeypatch):
    monkeypatch.setattr(load_library(), "native", native_code)


class Case:
    """Random operands; histories end with the last query, and `seen` tells which cells each query sees."""

    def __init__(self, d, dv, kv_heads, group, queries, history, batch=1, dtype=DType.F16, kind="causal"):
        self.rng = np.random.default_rng([d, dv, group, queries, history])
        self.scale, self.kind, self.dtype = 0.5 * d**-0.5, kind, dtype
        self.q = self._normal(batch, queries, kv_heads * group, d)
        self.k, self.v = (self._normal(batch, history, kv_heads, n) for n in (d, dv))
        self.seen = self._seen(queries, history)
        self.sinks: np.ndarray | None = None
        self.softcap = 0.0
        self.biased = 0.0  # how far the numbers of the mask are from 0

    def _normal(self, *shape):
        return self.rng.standard_normal(shape).astype(np.float32)

    def _seen(self, queries, history):
        cell, place = np.arange(history), np.arange(queries)[:, None] + history - queries
        if self.kind == "causal":
            return cell <= place
        if self.kind == "window":
            return (cell <= place) & (cell > place - 40)
        if self.kind == "three sequences":
            return (cell <= place) & (cell % 3 == place % 3)
        return self.rng.random((queries, history)) < 0.3

    def mask(self, padding=0):
        noise = self.biased * self._normal(*self.seen.shape)
        rows = np.where(self.seen, noise.astype(np.float16), np.float16(-np.inf))
        return np.pad(rows, ((0, padding), (0, 0)), constant_values=np.nan)

    def run(self, mask=None, threads=2):
        """The result, and the keys and values as the cache holds them."""
        with Ggml(None, BackendParams(flash_attention=FlashAttention.ON, num_threads=threads)) as backend:
            ctx = backend.new_context()
            key, value = (ctx.from_floats(x).cast(ctx, self.dtype) for x in (self.k, self.v))
            hidden = ctx.from_floats(mask) if mask is not None and mask.dtype == np.float32 else None
            if mask is not None and hidden is None:
                hidden = ctx.from_bytes(DType.F16, mask, *mask.shape[::-1])
            y = ctx.from_floats(self.q).scaled_dot_product_attention(
                ctx, key, value, hidden, scale=self.scale, softcap=self.softcap,
                sinks=None if self.sinks is None else ctx.from_floats(self.sinks),
            )  # fmt: skip
            ctx.compute(y, key, value)
            assert any("custom" in line for line in ctx.recording._plan.report())
            return y.numpy(), key.numpy(), value.numpy()

    def expected(self, k, v, mask=None):
        """By the definition, in float64."""
        group = self.q.shape[2] // k.shape[2]
        q, k, v = (each.astype(np.float64).transpose(0, 2, 1, 3) for each in (self.q, k, v))
        k, v = (np.repeat(each, group, axis=1) for each in (k, v))
        s = q @ k.swapaxes(2, 3) * self.scale
        if self.softcap:
            s = self.softcap * np.tanh(s / self.softcap)
        s = s if mask is None else s + mask[..., : s.shape[2], :]
        column = -np.inf if self.sinks is None else self.sinks[:, None, None].astype(np.float64)
        highest = np.maximum(s.max(-1, keepdims=True), column)
        highest[np.isneginf(highest)] = 0
        weights = np.exp(s - highest)
        total = weights.sum(-1, keepdims=True) + np.exp(column - highest)
        return (weights / np.where(total == 0, 1, total) @ v).transpose(0, 2, 1, 3)

    def check(self, mask=None):
        found, k, v = self.run(mask)
        expected = self.expected(k, v, mask)
        # With blocks of codes, native code may round queries and weights to 16 bits.
        most = 1e-8 if self.dtype.is_quantized else 1e-10
        assert np.sum((found - expected) ** 2) < most * np.sum(expected**2)
        return found


@pytest.mark.parametrize("dtype", CACHES)
@pytest.mark.parametrize(
    ("d", "dv", "group", "queries", "history"),
    [
        (64, 64, 4, 1, 1000),
        (64, 64, 4, 2, 1300),
        (64, 64, 3, 5, 257),
        (96, 64, 7, 1, 65),
        (128, 128, 8, 16, 500),
        (128, 128, 5, 33, 300),
        (192, 128, 1, 16, 129),
        (256, 256, 2, 4, 600),
        (576, 512, 16, 1, 300),
        (576, 512, 16, 3, 70),
        (64, 64, 1, 140, 200),
    ],
)
@pytest.mark.few(20)
def test_keys_and_values_of_each_dtype_are_read(dtype, d, dv, group, queries, history) -> None:
    case = Case(d, dv, 2, group, queries, history, dtype=dtype)
    case.check(case.mask())


@pytest.mark.parametrize("left_out", ["avx512", "vnni"])
@pytest.mark.parametrize("dtype", CACHES)
@pytest.mark.parametrize("queries", [1, 3, 40])
def test_each_instruction_set_has_code(request, monkeypatch, queries, dtype, left_out) -> None:
    code = request.getfixturevalue(f"native_code_without_{left_out}")
    monkeypatch.setattr(load_library(), "native", code)
    case = Case(96, 64, 2, 3, queries, 300, dtype=dtype)
    case.check(case.mask())


def blocks(rng, dtype, scales):
    """Random codes with these scales, as an array of bytes."""
    made = rng.integers(0, 256, (*scales.shape, dtype.type_size), dtype=np.uint8)
    made[..., :2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return made


@pytest.mark.parametrize("group", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0])
@pytest.mark.parametrize("kind", ["negative", "tiny", "large", "infinite", "NaN"])
@pytest.mark.parametrize("operand", [0, 1])
def test_scales_of_blocks_may_be_any_numbers(group, dtype, kind, operand) -> None:
    """In one cell of many, or in all."""
    rng = np.random.default_rng(group)
    case = Case(64, 64, 2, group, 1, 70)
    scales = [0.02 * np.abs(rng.standard_normal((1, 70, 2, 2))) for _ in range(2)]
    special = {"negative": -0.03, "tiny": 6e-8, "large": 60000, "infinite": np.inf, "NaN": np.nan}[kind]
    scales[operand][:, 40 : 42 if kind in ("infinite", "NaN") else 60] = special
    raw = [blocks(rng, dtype, each) for each in scales]
    with (
        Ggml(None, PARAMS) as backend,
        backend.new_context() as ctx,
        np.errstate(invalid="ignore", over="ignore"),
    ):
        key, value = (ctx.from_bytes(dtype, each, 64, 2, 70, 1) for each in raw)
        y = ctx.from_floats(case.q).scaled_dot_product_attention(ctx, key, value, None, scale=case.scale)
        ctx.compute(y)
        found, (k, v) = y.numpy(), (each.numpy() for each in (key, value))
        expected = case.expected(k, v)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(v[np.isfinite(v)]).max())


@pytest.mark.parametrize("gap", [5, 9, 10.4, 11.2, 12])
@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0])
def test_many_small_weights_beside_a_large_one_count(gap, dtype) -> None:
    """As beside the first token of a text, to which most heads attend. They would all be rounded the same way."""
    case = Case(64, 64, 1, 4, 1, 64, dtype=dtype)
    case.q[...], case.k[...], case.scale = 1, 0, 1
    case.k[0, 0] = gap / 64
    case.v[0, 1:] = 1 + 0.2 * case.v[0, 1:]
    case.v[0, 0] *= np.where(np.arange(64) % 32 == 0, 1, 0)  # as large as the others, for the same scale
    found, k, v = case.run()
    expected, highest = case.expected(k, v), np.abs(v).max()
    np.testing.assert_allclose(found, expected, atol=2e-4 * highest)
    bias = (found - expected)[..., 1:32].mean()
    assert abs(bias) < 2e-5 * highest


@pytest.mark.parametrize("factor", [0, 1e-36, 1e-20, 1e20, 3e36])
@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0])
def test_queries_may_be_small_and_large(factor, dtype) -> None:
    case = Case(64, 64, 2, 4, 1, 70, dtype=dtype)
    case.q[:, :, 1:] *= np.float32(factor)
    case.scale = 0.5 * 64**-0.5 / max(factor, 1e-30)
    found, k, v = case.run()
    np.testing.assert_allclose(found[:, :, 1:], case.expected(k, v)[:, :, 1:], atol=1e-3)


@pytest.mark.parametrize("history", [1, 2, 31, 32, 33, 64, 255, 256, 257, 5000])
@pytest.mark.parametrize("queries", [1, 20])
def test_histories_of_any_length_are_attended_to(history, queries) -> None:
    Case(80, 80, 2, 4, queries, history).check()


@pytest.mark.parametrize("d", [1, 7, 33, 72, 80, 100])
def test_heads_may_have_any_number_of_features(d) -> None:
    for queries in (1, 20):
        case = Case(d, d + 2, 1, 4, queries, 90)
        case.check(case.mask())


@pytest.mark.parametrize("kind", ["causal", "window", "three sequences", "random"])
@pytest.mark.parametrize("queries", [1, 3, 6, 40, 130])
@pytest.mark.parametrize("biased", [0.0, 2.0])
@pytest.mark.few(10)
def test_masks_hide_cells_and_add_to_scores(kind, queries, biased) -> None:
    case = Case(64, 64, 2, 4, queries, 400, kind=kind)
    case.biased = biased
    mask = case.mask(padding=3)
    case.check(mask)
    case.check(mask.astype(np.float32))


@pytest.mark.parametrize("queries", [1, 4, 50])
def test_masks_may_differ_between_heads_and_batches(queries) -> None:
    case = Case(32, 32, 2, 3, queries, 300, batch=2)
    shape = (2, 6, queries, 300)
    mask = np.where(case.rng.random(shape) < 0.6, case.rng.standard_normal(shape), -np.inf)
    case.check(mask.astype(np.float16))
    case.check(mask[:, :1].astype(np.float16))
    case.check(mask[:1].astype(np.float32))


@pytest.mark.parametrize("queries", [1, 50])
def test_sinks_and_softcap_are_applied(queries) -> None:
    case = Case(64, 48, 2, 4, queries, 700)
    case.sinks, case.softcap = 3 * case.rng.standard_normal(8).astype(np.float32), 2.0
    case.q *= 8
    case.check(case.mask())
    case.check()


@pytest.mark.parametrize("queries", [1, 4, 100])
def test_a_fully_masked_row_gives_zeros_and_harms_no_other(queries) -> None:
    case = Case(64, 64, 2, 4, queries, 300)
    case.seen[queries // 2] = False
    for case.sinks in (None, np.ones(8, np.float32)):
        found, k, v = case.run(case.mask())
        np.testing.assert_allclose(found, case.expected(k, v, case.mask()), atol=1e-5)
        assert not found[0, queries // 2].any()


@pytest.mark.parametrize("queries", [1, 4, 100])
def test_cells_that_no_query_sees_are_not_read(queries) -> None:
    case = Case(64, 64, 2, 4, queries, 300)
    case.seen[:, 50:90] = False
    mask = case.mask()
    clean, _, _ = case.run(mask)
    case.k[:, 50:90] = np.nan
    case.v[:, 50:90] = np.inf
    assert np.array_equal(case.run(mask)[0], clean)


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e35])
@pytest.mark.parametrize("dtype", [DType.F16, DType.Q8_0, DType.Q4_0])
@pytest.mark.parametrize("queries", [1, 2, 4, 100])
def test_an_unusual_number_in_a_query_stays_in_its_row(queries, dtype, number) -> None:
    case = Case(64, 64, 2, 3, queries, 300, dtype=dtype)
    clean, _, _ = case.run(case.mask())
    case.q[0, queries - 1, 3, 5] = number
    found, _, _ = case.run(case.mask())
    assert number == 1e35 or np.isnan(found[0, -1, 3]).all()
    assert not np.array_equal(found[0, -1, 3], clean[0, -1, 3])
    found[0, -1, 3] = clean[0, -1, 3]
    assert np.array_equal(found, clean)


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("operand", ["k", "v"])
@pytest.mark.parametrize("kind", ["causal", "three sequences"])
@pytest.mark.parametrize("queries", [2, 3, 40, 130])
def test_nan_in_a_cell_reaches_only_the_queries_that_see_it(queries, kind, operand, number) -> None:
    """Sequences share a step, and the fault of one is not that of another."""
    case = Case(64, 64, 2, 4, queries, 190, kind=kind)
    whole, _, _ = case.run(case.mask())
    cell = 190 - max(1, queries // 3)
    getattr(case, operand)[:, cell] = number
    found, _, _ = case.run(case.mask())
    sees = case.seen[:, cell]
    assert sees.any() and not sees.all()
    np.testing.assert_allclose(found[0, ~sees], whole[0, ~sees], rtol=1e-5, atol=1e-6)
    assert not np.array_equal(found[0, sees], whole[0, sees])


@pytest.mark.parametrize("queries", [1, 2, 70])
def test_results_do_not_depend_on_the_number_of_threads(queries) -> None:
    case = Case(64, 64, 2, 4, queries, 1500, kind="three sequences")
    one, _, _ = case.run(case.mask(), threads=1)
    for threads in (2, 3, 7):
        assert np.array_equal(case.run(case.mask(), threads=threads)[0], one)


def test_layers_share_the_table_of_a_mask() -> None:
    with Ggml(None, PARAMS) as backend, backend.new_context() as ctx:
        x, k = ctx.zeros(DType.F32, 64, 8, 2), ctx.zeros(DType.F16, 64, 2, 512)
        mask = ctx.zeros(DType.F16, 512, 2)
        for _ in range(3):
            x = x.scaled_dot_product_attention(ctx, k, k, mask, scale=0.1)
        ctx.compute(x)
        report = ctx.recording._plan.report()
        assert sum("custom(f16[512, 2, 1, 1])" in line for line in report) == 1
        assert sum("custom" in line for line in report) > 3


def test_a_mask_that_is_written_between_two_layers_is_read_again() -> None:
    case = Case(64, 64, 1, 2, 1, 64, dtype=DType.F32)
    with Ggml(None, PARAMS) as backend, backend.new_context() as ctx:
        q, k, v = (ctx.from_floats(x) for x in (case.q, case.k, case.v))
        mask, more = ctx.empty(DType.F16, 64, 1), ctx.empty(DType.F16, 64, 1)
        shown = [np.where(np.arange(64)[None] < n, np.float16(0), np.float16(-np.inf)) for n in (20, 64)]
        mask.from_bytes(shown[0]), more.from_bytes(shown[1])
        before = q.scaled_dot_product_attention(ctx, k, v, mask, scale=case.scale)
        after = q.scaled_dot_product_attention(ctx, k, v, more.copy(ctx, mask), scale=case.scale)
        ctx.forward(before, after).compute(before, after)
        for found, hidden in zip((before, after), shown, strict=True):
            np.testing.assert_allclose(found.numpy(), case.expected(case.k, case.v, hidden), atol=1e-5)
