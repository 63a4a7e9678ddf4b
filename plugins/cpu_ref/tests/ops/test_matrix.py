"""Matrix products and attention against loops over their formulas."""

import math
from itertools import product

import numpy as np
import pytest
from exact import FLOATS, LAYOUTS, Case, assert_rounds_to, check, leaf, numbers, value

from backbay import CacheConfig, DType
from backbay_cpu_ref import CpuRef

NAN, INF = math.nan, math.inf
SUMS = 1e-13  # float64 sums in another order differ by some units of their last place


def rank4(x):
    return x.reshape((*x.shape, *[1] * (4 - x.ndim)))


def mulmat(w, x):
    w4, x4 = rank4(w), rank4(x)
    y = np.zeros((w4.shape[1], *x4.shape[1:]))
    for i, j, a, b in np.ndindex(y.shape):
        ra, rb = x4.shape[2] // w4.shape[2], x4.shape[3] // w4.shape[3]
        y[i, j, a, b] = math.fsum(w4[:, i, a // ra, b // rb] * x4[:, j, a, b])
    return y.reshape((w4.shape[1], *x.shape[1:]))


PRODUCTS = [
    ((5, 3), (5, 2)), ((5, 3), (5,)), ((5,), (5, 4)), ((1, 1), (1, 1)), ((33, 2), (33, 3)),
    ((4, 3, 2), (4, 5, 6)), ((4, 3, 2, 3), (4, 2, 4, 6)), ((4, 3, 1, 2), (4, 1, 3, 2)), ((4, 3), (4, 2, 3, 2)),
    ((0, 3), (0, 2)), ((4, 0), (4, 2)), ((4, 3), (4, 0)), ((4, 3, 0), (4, 2, 0)), ((4, 3, 2), (4, 2, 0)), ((), ()),
]  # fmt: skip


@pytest.mark.parametrize("op", ["mulmat", "mulmat_full_prec"])
@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
def test_a_product_is_rows_times_rows(ctx, op, shapes):
    for dtype, layout in product(FLOATS, LAYOUTS):
        check(ctx, Case(op, shapes, mulmat, slack=SUMS), [dtype, DType.F32], [layout] * 2, DType.F32)


@pytest.mark.parametrize(("w", "x"), list(product(FLOATS, FLOATS)), ids=str)
def test_a_product_takes_any_two_floats(ctx, w, x):
    check(
        ctx, Case("mulmat", ((7, 3), (7, 2)), mulmat, slack=SUMS), [w, x], ["permuted", "stepped"], DType.F32
    )


def test_nan_and_infinities_stay_in_their_row_and_column(ctx):
    w, x = leaf(ctx, [[INF, 1.0], [0.0, 1.0]]), leaf(ctx, [[0.0, 1.0], [1.0, 1.0]])
    np.testing.assert_array_equal(value(ctx, w.mulmat(ctx, x)), [[NAN, INF], [2.0 - 1, 2.0]])


def mulmat_id(w, x, ids):
    y = np.zeros((w.shape[1], *ids.shape))
    for i, u, t in np.ndindex(y.shape):
        y[i, u, t] = math.fsum(w[:, i, ids[u, t]] * x[:, u % x.shape[1], t])
    return y


IDS = [(1, 1, 1), (2, 2, 5), (2, 1, 5), (3, 3, 1), (0, 1, 2), (0, 0, 2), (2, 2, 0)]  # used, rows of x, tokens


@pytest.mark.parametrize("sizes", IDS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_token_meets_its_experts(ctx, sizes, dtype, layout):
    used, rows, tokens = sizes
    random = np.random.default_rng(5)
    w, x, t2 = (numbers(random, shape, dtype) for shape in ((6, 3, 4), (6, rows, tokens), (6, 4)))
    ids = random.integers(0, 4, (used, tokens))  # they repeat
    chosen = leaf(ctx, ids, DType.I32, layout if layout == "permuted" else "plain")
    y = leaf(ctx, w, dtype, layout).mulmat_id(ctx, leaf(ctx, x, dtype, layout), chosen)
    assert y.shape == (3, used, tokens)
    assert_rounds_to(value(ctx, y), mulmat_id(w, x, ids), DType.F32, SUMS)
    full = numbers(random, (6, used, tokens), dtype)
    sums = leaf(ctx, full, dtype, layout).add_id(ctx, leaf(ctx, t2, DType.F16, layout), chosen)
    held = numbers(np.random.default_rng(0), (0,)) if 0 in ids.shape else np.float16(t2).astype(float)[:, ids]
    if ids.size:
        assert_rounds_to(value(ctx, sums), full + held, dtype)
    else:
        assert value(ctx, sums).shape == (6, used, tokens)


def test_a_scalar_of_ids_is_one_token_with_one_expert(ctx):
    ids = ctx.empty(DType.I32).from_ints([1])
    w, x = leaf(ctx, [[[1.0, 2.0]], [[3.0, 4.0]]]), leaf(ctx, [1.0, 1.0])  # (2, 1, 2)
    assert value(ctx, w.mulmat_id(ctx, x, ids)).tolist() == [[[6.0]]]


def test_experts_may_come_from_top_k(ctx):
    scores = leaf(ctx, [[0.1, 0.9], [0.8, 0.2], [0.3, 0.4]])  # 3 experts, 2 tokens
    w = leaf(ctx, np.arange(6.0).reshape(1, 2, 3))
    y = w.mulmat_id(ctx, leaf(ctx, np.ones((1, 1, 2))), scores.top_k(ctx, 2))
    assert value(ctx, y).T.tolist() == [[[1.0, 4.0], [2.0, 5.0]], [[0.0, 3.0], [2.0, 5.0]]]


def attention(query, key, value, mask=None, *, scale, sinks=None, vmla=None, softcap=0.0):
    q, k, v = rank4(query), rank4(key), rank4(value)
    heads, tokens, batch = q.shape[1:]
    y = np.zeros((v.shape[0], heads, tokens, batch))
    for h, t, b in np.ndindex(heads, tokens, batch):
        g = h // (heads // k.shape[1])
        s = [math.fsum(q[:, h, t, b] * k[:, g, i, b]) * scale for i in range(k.shape[2])]
        s = [softcap * math.tanh(v / softcap) for v in s] if softcap else s
        if mask is not None:
            m = rank4(mask)
            s = [v + m[i, t, h % m.shape[2], b % m.shape[3]] for i, v in enumerate(s)]
        columns = s if sinks is None else [*s, sinks[h]]
        if columns and max(columns) > -INF:
            powers = [math.exp(v - max(columns)) for v in columns]
            y[:, h, t, b] = v[:, g, :, b] @ np.array(powers[: len(s)]) / math.fsum(powers)
        elif columns:
            y[:, h, t, b] = NAN
    if vmla is not None:
        y = np.einsum("deh,dhtb->ehtb", vmla, y)
    return y.reshape((y.shape[0], *query.shape[1:]))


ATTENTIONS = {  # query, key, value, the rest
    "plain": ((4, 2, 3), (4, 2, 5), (4, 2, 5), {}),
    "grouped": ((4, 6, 3, 2), (4, 2, 5, 2), (3, 2, 5, 2), {"mask": (5, 3)}),
    "one head": ((8,), (8,), (8,), {}),
    "one token": ((8, 4), (8, 2, 9), (8, 2, 9), {"mask": (9, 1)}),
    "padded mask": ((4, 2, 3), (4, 1, 7), (6, 1, 7), {"mask": (7, 8)}),
    "mask by head and batch": ((4, 2, 3, 2), (4, 2, 5, 2), (4, 2, 5, 2), {"mask": (5, 4, 2, 2)}),
    "sinks": ((4, 4, 3), (4, 2, 5), (4, 2, 5), {"mask": (5, 3), "sinks": (4,)}),
    "softcap": ((4, 2, 3), (4, 2, 5), (4, 2, 5), {"mask": (5, 3), "softcap": 1.5}),
    "all": ((4, 4, 3, 2), (4, 2, 5, 2), (6, 2, 5, 2), {"mask": (5, 4), "sinks": (4,), "vmla": (6, 7, 4), "softcap": 2.0}),
    "no history": ((4, 2, 3), (4, 2, 0), (4, 2, 0), {}),
    "no history but sinks": ((4, 2, 3), (4, 2, 0), (4, 2, 0), {"sinks": (2,)}),
    "no tokens": ((4, 2, 0), (4, 2, 5), (4, 2, 5), {}),
}  # fmt: skip


class Permuting(CpuRef):
    """A backend whose caches hold values by dimension, not by position."""

    def cache_config(self):
        return CacheConfig(permuted_v=True)


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("permuted", [False, True])
def test_attention_is_a_softmax_over_history_times_value(name, dtype, permuted):
    *shapes, rest = ATTENTIONS[name]
    random = np.random.default_rng(len(name))
    data = [numbers(random, shape, dtype) for shape in shapes]
    extra = {key: numbers(random, s, DType.F16) if isinstance(s, tuple) else s for key, s in rest.items()}
    expected = attention(*data, **extra, scale=0.5)
    if permuted:
        data[2] = np.moveaxis(rank4(data[2]), 2, 0)
    with (Permuting if permuted else CpuRef)() as backend, backend.new_context() as ctx:
        q, k, v = (
            leaf(ctx, x, dtype, layout)
            for x, layout in zip(data, ["stepped", "permuted", "plain"], strict=True)
        )
        kinds = {"mask": DType.F16, "sinks": DType.F32, "vmla": DType.F16}
        others = {key: leaf(ctx, x, kinds[key]) if key in kinds else x for key, x in extra.items()}
        y = q.scaled_dot_product_attention(ctx, k, v, **others, scale=0.5, cache_config_applied=permuted)
        assert (y.dtype, y.shape) == (DType.F32, expected.shape)
        assert_rounds_to(value(ctx, y), expected, DType.F32, SUMS)


@pytest.mark.parametrize("sinks", [False, True])
def test_a_fully_masked_row_touches_no_other(ctx, sinks):
    random = np.random.default_rng(1)
    q, k, v = (numbers(random, (4, 1, n)) for n in (3, 5, 5))
    mask = np.zeros((5, 3))
    mask[:, 1] = mask[2:, 0] = -INF
    others = {"sinks": leaf(ctx, [0.25])} if sinks else {}
    y = leaf(ctx, q).scaled_dot_product_attention(
        ctx, leaf(ctx, k), leaf(ctx, v), leaf(ctx, mask), scale=1.0, **others
    )
    expected = attention(q, k, v, mask, scale=1.0, sinks=[0.25] if sinks else None)
    got = value(ctx, y)
    assert_rounds_to(got[:, :, [0, 2]], expected[:, :, [0, 2]], DType.F32, SUMS)
    assert np.isnan(got[:, :, 1]).all() or (got[:, :, 1] == 0).all()


def test_values_need_not_be_permuted_where_the_backend_does_not_want_it(ctx):
    q, k, v = (leaf(ctx, numbers(np.random.default_rng(2), (4, 2, n))) for n in (3, 5, 5))
    y = q.scaled_dot_product_attention(ctx, k, v, scale=1.0, cache_config_applied=True)
    z = q.scaled_dot_product_attention(ctx, k, v, scale=1.0)
    ctx.compute(y, z)
    np.testing.assert_array_equal(y.numpy(), z.numpy())
