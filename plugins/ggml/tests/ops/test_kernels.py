"""Kernels, where ggml needs more care than the conformance suite can see."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import DType


def test_add_id_does_not_overwrite_rows_that_it_still_reads(backend) -> None:
    with backend.new_context() as ctx:
        rows = ctx.empty(DType.F16, 4, 3).from_floats(np.repeat([1.0, 2.0, 3.0], 4))
        ids = ctx.from_ints([[2, 0, 0]])
        y = ctx.zeros(DType.F32, 4, 3, 1).add_id(ctx, rows, ids).neg(ctx)
        ctx.compute(y)
        assert y.numpy().reshape(3, 4)[:, 0].tolist() == [-3, -1, -1]


def test_sorting_nan_gives_each_position_once(backend) -> None:
    numbers = np.random.default_rng(5).standard_normal(1000).astype(np.float32)
    numbers[::3] = np.nan
    with backend.new_context() as ctx:
        x = ctx.from_floats(numbers)
        up, down = x.argsort(ctx), x.top_k(ctx, 1000)
        ctx.compute(up, down)
        assert sorted(up.numpy()) == sorted(down.numpy()) == list(range(1000))


def test_factors_of_unrotated_pairs_are_not_read_beyond_the_leaf(backend) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.arange(1, 65), 64, 1, 1)
        y = x.rope(ctx, ctx.from_ints([3]), 8, 1e4, 1.0, "neox", ctx.from_floats([1, 2, 3, 4]))
        ctx.compute(y)
        np.testing.assert_array_equal(y.floats()[8:], np.arange(9, 65))


def test_strides_of_single_elements_do_not_fail_ggmls_checks(backend) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats([2.0], 1).interpolate(ctx, [64])
        y, z = x.scale(ctx, 0.5), x.silu(ctx, x.sqr(ctx))
        ctx.compute(y, z)
        assert y.floats().tolist() == [1.0] * 64
        np.testing.assert_allclose(z.floats(), [8 / (1 + np.exp(-2))] * 64, rtol=1e-6)


def test_a_copy_reads_its_source_before_it_overwrites_it(backend) -> None:
    with backend.new_context() as ctx:
        numbers = np.arange(64 * 64).reshape(64, 64)
        x = ctx.from_floats(numbers)
        ctx.compute(x.permute(ctx, 1, 0).copy(ctx, x))
        np.testing.assert_array_equal(x.numpy(), numbers.T)


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64])
def test_set_rows_moves_integers_of_all_bits(backend, dtype) -> None:
    step = 1 << (35 if dtype is DType.I64 else 25)
    with backend.new_context() as ctx:
        x = ctx.zeros(dtype, 4, 6)
        rows = ctx.empty(dtype, 4, 3).from_ints(np.arange(12) * step - step)
        ctx.compute(x.set_rows(ctx, rows, ctx.from_ints([4, 0, 5])))
        assert x.numpy()[[4, 0, 5]].reshape(-1).tolist() == [n * step - step for n in range(12)]
        assert not x.numpy()[1:4].any()
