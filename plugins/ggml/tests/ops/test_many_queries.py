"""Attention of many queries without a mask: by native code, and by ggml where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import BackendParams, DType, FlashAttention
from backbay_ggml import Ggml
from backbay_ggml.library.library import load_library
from backbay_native import NativeCode

PARAMS = BackendParams(flash_attention=FlashAttention.ON, num_threads=2)


@pytest.fixture(params=["native", "ggml"])
def code(request, monkeypatch):
    """Whose code computes."""
    found = request.getfixturevalue("native_code") if request.param == "native" else NativeCode(None)
    monkeypatch.setattr(load_library(), "native", found)
    return request.param


def attended(q, k, v, scale):
    """By the definition, in float64."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (each.astype(np.float64).transpose(0, 2, 1, 3) for each in (q, k, v))
    k, v = (np.repeat(each, group, axis=1) for each in (k, v))
    s = q @ k.swapaxes(2, 3) * scale
    weights = np.exp(s - s.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)


@pytest.mark.parametrize(
    ("features", "values", "heads", "shared", "queries", "keys", "batch"),
    [
        (72, 72, 4, 4, 130, 200, 1),
        (64, 64, 2, 2, 65, 577, 1),
        (20, 20, 6, 2, 80, 96, 2),
        (7, 33, 3, 3, 64, 97, 1),
        (128, 128, 1, 1, 257, 5, 1),
        (16, 1, 2, 1, 100, 1, 3),
        (200, 200, 1, 1, 70, 90, 1),
    ],
)
def test_the_result_is_that_of_the_definition(
    code, features, values, heads, shared, queries, keys, batch
) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (
        3 * rng.standard_normal(shape).astype(np.float32)
        for shape in (
            (batch, queries, heads, features),
            (batch, keys, shared, features),
            (batch, keys, shared, values),
        )
    )
    with Ggml(None, PARAMS) as backend, backend.new_context() as ctx:
        query, key, value = (ctx.from_floats(array) for array in (q, k, v))
        y = query.scaled_dot_product_attention(ctx, key, value, scale=0.1)
        ctx.compute(y)
        expected = attended(q, k, v, 0.1)
        assert np.sum((y.numpy() - expected) ** 2) < 1e-10 * np.sum(expected**2)


def test_operands_may_be_views(code) -> None:
    numbers = np.random.default_rng(2).standard_normal((3, 90, 4, 24)).astype(np.float32)
    with Ggml(None, PARAMS) as backend, backend.new_context() as ctx:
        together = ctx.from_floats(numbers.transpose(1, 0, 2, 3).copy())  # (24, 4, 3, 90)
        q, k, v = (together.view(ctx, n * 384, (24, 4, 90), (96, 3 * 384)) for n in range(3))
        y = q.slice(ctx, 2, 13, 90).scaled_dot_product_attention(
            ctx, k.slice(ctx, 2, 0, 70), v.slice(ctx, 2, 0, 70), scale=0.2
        )
        ctx.compute(y)
        q, k, v = numbers[:, None]
        np.testing.assert_allclose(y.numpy(), attended(q[:, 13:], k[:, :70], v[:, :70], 0.2)[0], atol=1e-5)


def test_scores_of_hundreds_are_weighed_and_nan_stays_in_its_row(code) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 70, 2, 16)).astype(np.float32) for _ in "qkv")
    q[0, :60] *= 300
    q[0, 66] = np.nan
    with Ggml(None, PARAMS) as backend, backend.new_context() as ctx:
        query, key, value = (ctx.from_floats(array) for array in (q, k, v))
        y = query.scaled_dot_product_attention(ctx, key, value, scale=1.0)
        ctx.compute(y)
        found, expected = y.numpy()[0], attended(q, k, v, 1.0)[0]
        others = np.arange(70) != 66
        # Scores near 1000 have four digits behind the point.
        np.testing.assert_allclose(found[others], expected[others], atol=2e-3)
        assert np.isnan(found[66]).all()


def test_scores_are_never_held(code) -> None:
    params = BackendParams(flash_attention=FlashAttention.ON, alloc_memory=False)
    with Ggml(None, params) as backend, backend.new_context() as ctx:
        x = ctx.zeros(DType.F32, 64, 8, 1024)
        before = backend.memory().total()
        ctx.forward(x.scaled_dot_product_attention(ctx, x, x, scale=0.25)).reserve()
        assert backend.memory().total() - before < 4 * 8 * 1024**2
