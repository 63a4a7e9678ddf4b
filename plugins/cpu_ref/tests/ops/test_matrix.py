"""Products and attention on operands that the conformance suite does not draw: empty ones, ids of top_k, permuted values."""

import numpy as np
import pytest
from exact import leaf, numbers, value

from backbay import CacheConfig, DType
from backbay_cpu_ref import CpuRef


@pytest.mark.parametrize("op", ["mulmat", "mulmat_full_prec"])
@pytest.mark.parametrize(("w", "x"), [((4, 3, 0), (4, 2, 0)), ((4, 3, 2), (4, 2, 0)), ((4, 3), (4, 2, 3, 0))])
def test_a_product_of_no_slices_is_empty(ctx, op, w, x):
    y = getattr(leaf(ctx, np.zeros(w)), op)(ctx, leaf(ctx, np.zeros(x)))
    assert value(ctx, y).shape == (3, *x[1:])


def test_a_scalar_of_ids_is_one_token_with_one_expert(ctx):
    ids = ctx.empty(DType.I32).from_ints([1])
    w, x = leaf(ctx, [[[1.0, 2.0]], [[3.0, 4.0]]]), leaf(ctx, [1.0, 1.0])  # (2, 1, 2)
    assert value(ctx, w.mulmat_id(ctx, x, ids)).tolist() == [[[6.0]]]


def test_experts_may_come_from_top_k(ctx):
    scores = leaf(ctx, [[0.1, 0.9], [0.8, 0.2], [0.3, 0.4]])  # 3 experts, 2 tokens
    w = leaf(ctx, np.arange(6.0).reshape(1, 2, 3))
    y = w.mulmat_id(ctx, leaf(ctx, np.ones((1, 1, 2))), scores.top_k(ctx, 2))
    assert value(ctx, y).T.tolist() == [[[1.0, 4.0], [2.0, 5.0]], [[0.0, 3.0], [2.0, 5.0]]]


@pytest.mark.parametrize("sinks", [False, True])
def test_attention_to_no_history_is_zero(ctx, sinks):
    q, k, v = (leaf(ctx, np.ones(shape)) for shape in ((4, 2, 3), (4, 2, 0), (4, 2, 0)))
    others = {"sinks": leaf(ctx, [0.25, 0.5])} if sinks else {}
    y = value(ctx, q.scaled_dot_product_attention(ctx, k, v, scale=0.5, **others))
    np.testing.assert_array_equal(y, np.zeros((4, 2, 3)))


class Permuting(CpuRef):
    """A backend whose caches hold values by dimension, not by position."""

    def cache_config(self):
        return CacheConfig(permuted_v=True)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=str)
def test_a_permuted_value_gives_the_same_attention(ctx, dtype):
    random = np.random.default_rng(1)
    q, k, v = (numbers(random, s, dtype) for s in ((4, 6, 3, 2), (4, 2, 5, 2), (3, 2, 5, 2)))
    plain = leaf(ctx, q, dtype).scaled_dot_product_attention(
        ctx, leaf(ctx, k, dtype), leaf(ctx, v, dtype), scale=0.5
    )
    with Permuting() as backend, backend.new_context() as other:
        turned = leaf(other, np.moveaxis(v, 2, 0), dtype)
        y = leaf(other, q, dtype).scaled_dot_product_attention(
            other, leaf(other, k, dtype), turned, scale=0.5, cache_config_applied=True
        )
        np.testing.assert_allclose(value(other, y), value(ctx, plain), rtol=2**-23)


def test_values_need_not_be_permuted_where_the_backend_does_not_want_it(ctx):
    q, k, v = (leaf(ctx, numbers(np.random.default_rng(2), (4, 2, n))) for n in (3, 5, 5))
    y = q.scaled_dot_product_attention(ctx, k, v, scale=1.0, cache_config_applied=True)
    z = q.scaled_dot_product_attention(ctx, k, v, scale=1.0)
    ctx.compute(y, z)
    np.testing.assert_array_equal(y.numpy(), z.numpy())
