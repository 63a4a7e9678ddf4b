"""Attention with flash attention and without."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import BackendParams, DType, FlashAttention
from backbay_ggml import Ggml


def test_the_cache_config_follows_flash_attention() -> None:
    for choice, permuted in (
        (FlashAttention.ON, False),
        (FlashAttention.AUTO, False),
        (FlashAttention.OFF, True),
    ):
        with Ggml(None, BackendParams(flash_attention=choice)) as backend:
            config = backend.cache_config()
            assert (config.permuted_v, config.mask_dtype) == (permuted, DType.F16)


def test_attention_reads_permuted_values() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((5, 4, 16), (32, 2, 16), (32, 2, 16))
    )
    found = []
    for choice in (FlashAttention.OFF, FlashAttention.ON):
        with Ggml(None, BackendParams(flash_attention=choice)) as backend, backend.new_context() as ctx:
            query, key = ctx.from_floats(q), ctx.from_floats(k)
            permuted = backend.cache_config().permuted_v
            value = ctx.from_floats(v.transpose(1, 2, 0).copy() if permuted else v)
            y = query.scaled_dot_product_attention(ctx, key, value, scale=0.25, cache_config_applied=True)
            ctx.compute(y)
            found.append(y.numpy())
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


@pytest.mark.parametrize(("dim", "strides"), [(1, (0, 64)), (2, (64, 0))])
def test_attention_takes_heads_or_positions_of_stride_0(backend, dim, strides) -> None:
    numbers = np.random.default_rng(3).standard_normal((3, 4, 16)).astype(np.float32)
    with backend.new_context() as ctx:
        mask = ctx.zeros(DType.F32, 4, 4)  # which flash attention does not take
        leaves = [ctx.from_floats(array) for array in numbers]
        shape = (16, 1, 4) if dim == 1 else (16, 4, 1)
        results = []
        for trace in (lambda x: x.view(ctx, 0, (16, 4, 4), strides), lambda x: x.repeat(ctx, dim, 4)):
            q, k, v = (trace(leaf.reshape(ctx, *shape)) for leaf in leaves)
            results += [q.scaled_dot_product_attention(ctx, k, v, m, scale=0.25) for m in (None, mask)]
        ctx.compute(*results)
        for viewed, repeated in zip(results[:2], results[2:], strict=True):
            assert np.array_equal(viewed.numpy(), repeated.numpy())


@pytest.mark.parametrize("choice", [FlashAttention.ON, FlashAttention.OFF])
def test_an_empty_history_gives_zeros(choice) -> None:
    with Ggml(None, BackendParams(flash_attention=choice)) as backend, backend.new_context() as ctx:
        query, key, value = ctx.zeros(DType.F32, 8, 4, 6), *(ctx.zeros(DType.F32, 8, 2, 0) for _ in "kv")
        y = query.scaled_dot_product_attention(ctx, key, value, scale=0.2)
        ctx.compute(y)
        assert y.numpy().shape == (6, 4, 8)
        assert not y.numpy().any()
