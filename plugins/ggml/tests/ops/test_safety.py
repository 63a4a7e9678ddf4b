"""What core lets in must not kill the process: a short run of the fuzzer, and what it once found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from backbay import BackbayError, DType

FUZZ = Path(__file__).parents[2] / "tools" / "fuzz.py"


@pytest.mark.parametrize("options", [["--count", "200", "--workers", "2"], ["--count", "50", "--rpc"]])
def test_random_graphs_kill_no_process(options) -> None:
    done = subprocess.run(
        [sys.executable, str(FUZZ), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_sorting_nan_gives_each_position_once(backend) -> None:
    numbers = np.random.default_rng(5).standard_normal(1000).astype(np.float32)
    numbers[::3] = np.nan
    with backend.new_context() as ctx:
        x = ctx.from_floats(numbers)
        up, down = x.argsort(ctx), x.top_k(ctx, 1000)
        ctx.compute(up, down)
        assert sorted(up.numpy()) == sorted(down.numpy()) == list(range(1000))


@pytest.mark.parametrize(
    "trace",
    [
        lambda c: c.zeros(DType.F32, 1, 1, 1, 1).conv2d(c, c.zeros(DType.F32, 8, 8, 1, 1), 1, 1, 1 << 30, 0),
        lambda c: c.zeros(DType.F32, 1, 1, 1, 1).conv3d(
            c, c.zeros(DType.F32, 8, 8, 8, 1), 1, 1, 1, 1, 1 << 30
        ),
        lambda c: c.zeros(DType.F32, 8, 8).avg_pool2d(c, 1 << 30, 1, float(1 << 30)),
        lambda c: c.zeros(DType.F32, 8, 8).avg_pool2d(c, 2, 1, float(1 << 30)),
        lambda c: c.zeros(DType.F32, 1).pad(c, 1 << 40),
        lambda c: c.zeros(DType.F32, 1).pad(c, (1 << 32) - 2),
        lambda c: c.zeros(DType.F32, 0).repeat_4d(c, 0, 1 << 50),
        lambda c: c.zeros(DType.F32, 1 << 50, 0).sqr(c),
        lambda c: c.zeros(DType.Q8_0, 64, 4).set_rows(c, c.zeros(DType.Q8_0, 64, 1), c.from_ints([0])),
    ],
)
def test_what_c_could_not_count_is_refused(backend, trace) -> None:
    with backend.new_context() as ctx, pytest.raises(BackbayError):
        ctx.compute(trace(ctx))


def test_factors_of_pairs_that_are_not_turned_are_not_read_from_elsewhere(backend) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.arange(1, 65), 64, 1, 1)
        y = x.rope(ctx, ctx.from_ints([3]), 8, 1e4, 1.0, "neox", ctx.from_floats([1, 2, 3, 4]))
        ctx.compute(y)
        np.testing.assert_array_equal(y.floats()[8:], np.arange(9, 65))


def test_odd_strides_of_single_elements_do_not_reach_ggmls_checks(backend) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats([2.0], 1).interpolate(ctx, [64])
        y, z = x.scale(ctx, 0.5), x.silu(ctx, x.sqr(ctx))
        ctx.compute(y, z)
        assert y.floats().tolist() == [1.0] * 64
        np.testing.assert_allclose(z.floats(), [8 / (1 + np.exp(-2))] * 64, rtol=1e-6)


@pytest.mark.parametrize(("dim", "strides"), [(1, (0, 64)), (2, (64, 0))])
def test_attention_takes_heads_or_positions_that_lie_in_one_place(backend, dim, strides) -> None:
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
