"""Copies of wide rows and convolutions of channels, by native code and by ggml."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import BackendParams, DType
from backbay_ggml import Ggml
from backbay_ggml.library.library import load_library
from backbay_ggml.ops.index import FEW, WIDE
from backbay_native import NativeCode

RNG = np.random.default_rng(7)


@pytest.fixture(params=["native", "ggml"])
def code(request, monkeypatch):
    """Whose code computes."""
    native = request.getfixturevalue("native_code") if request.param == "native" else NativeCode(None)
    monkeypatch.setattr(load_library(), "native", native)
    return request.param


@pytest.fixture(params=[1, 2, 3])
def ctx(request, code):
    with Ggml(None, BackendParams(num_threads=request.param)) as backend, backend.new_context() as made:
        yield made


def numbers(*shape: int):
    return RNG.standard_normal(shape).astype(np.float32)


def by(ctx) -> set[str]:
    """The names of the last plan's ops."""
    return {line.split()[1].partition("(")[0] for line in ctx.recording._plan.report()}


def test_few_wide_rows_are_picked_and_put(ctx, code) -> None:
    table, rows = numbers(6, WIDE + 24), numbers(2, WIDE + 24)
    store = ctx.from_floats(table)
    ids = ctx.from_ints([4, 1])
    picked = store.rows(ctx, ids)
    write = store.set_rows(ctx, ctx.from_floats(rows).scale(ctx, 2.0), ids)
    ctx.forward(picked, write).compute(picked)
    np.testing.assert_array_equal(picked.numpy(), table[[4, 1]])
    table[[4, 1]] = rows * 2
    np.testing.assert_array_equal(store.numpy(), table)
    assert ("custom" in by(ctx)) == (code == "native")


def test_many_rows_are_left_to_ggml(ctx) -> None:
    table = numbers(FEW + 1, WIDE)
    picked = ctx.from_floats(table).rows(ctx, ctx.from_ints(list(range(FEW, -1, -1))))
    ctx.compute(picked)
    np.testing.assert_array_equal(picked.numpy(), table[::-1])
    assert by(ctx) == {"get_rows"}


@pytest.mark.parametrize("dim", range(4))
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.I64])
def test_tensors_are_joined_along_each_dimension(ctx, code, dim, dtype) -> None:
    shapes = [[5, 3, 4, 32], [5, 3, 4, 32]]
    shapes[1][3 - dim] = 7
    parts = [RNG.integers(-100, 100, shape) for shape in shapes]
    tensors = [ctx.from_bytes(dtype, part.astype(_kind(dtype)), *part.shape[::-1]) for part in parts]
    joined = tensors[0].concat(ctx, tensors[1], dim)
    ctx.compute(joined)
    np.testing.assert_array_equal(joined.numpy(), np.concatenate(parts, 3 - dim))
    assert by(ctx) == {"custom" if code == "native" else "concat"}


@pytest.mark.parametrize(("taps", "channels"), [(1, 16), (4, 5), (4, 300), (5, 1024), (32, 17), (33, 16)])
@pytest.mark.parametrize("tokens", [1, 9])
def test_channels_that_adjoin_are_convolved(ctx, code, taps, channels, tokens) -> None:
    x, weight = numbers(2, taps - 1 + tokens, channels), numbers(channels, taps)
    window = ctx.from_floats(x).permute(ctx, 1, 0, 2)
    y = window.ssm_conv(ctx, ctx.from_floats(weight))
    ctx.compute(y)
    expected = sum(x[:, i : i + tokens] * weight[:, i] for i in range(taps))
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert ("custom" in by(ctx)) == (code == "native" and taps <= 32)


def _kind(dtype: DType) -> type:
    return {DType.F32: np.float32, DType.F16: np.float16, DType.I64: np.int64}[dtype]
