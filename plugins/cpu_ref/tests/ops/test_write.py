"""Writes into leaves and rows by number, where the conformance suite draws no operands: other dtypes, strides and ranks."""

import math
from itertools import product

import numpy as np
import pytest
from exact import FLOATS, leaf, numbers, value

from backbay import DType, ops
from backbay_cpu_ref import CpuRef

KINDS = (*FLOATS, DType.I32, DType.I64, DType.Q8_0, DType.Q4_0)


def held(data, dtype):
    """Numbers after a round trip through a leaf of the dtype."""
    with CpuRef() as backend, backend.new_context() as ctx:
        return ctx.empty(dtype, *data.shape).from_floats(data.T).numpy().T


@pytest.mark.parametrize(("source", "target"), list(product(KINDS, KINDS)), ids=str)
def test_a_copy_converts_to_its_destination(ctx, source, target):
    data = np.random.default_rng(1).integers(-90, 90, (64, 3)).astype(float)
    x = ctx.empty(source, 64, 3).from_floats(data.T)
    dst = ctx.zeros(target, 64, 3)
    alias = x.copy(ctx, dst)
    assert (alias.dtype, alias.shape) == (target, dst.shape)
    ctx.compute(alias)
    expected = x.numpy().T.astype(float)
    expected = held(np.trunc(expected) if target.is_integer else expected, target)
    if source is target:
        assert dst.bytes() == x.bytes()
    np.testing.assert_array_equal(dst.numpy().T, expected)
    np.testing.assert_array_equal(alias.numpy().T, expected)


def test_nan_and_infinities_become_some_integer(ctx):
    assert value(ctx, leaf(ctx, [math.nan, math.inf]).cast(ctx, DType.I32)).shape == (2,)


def test_an_alias_reads_all_writes_to_its_tensor(ctx):
    cell = leaf(ctx, [1.0, 2.0, 3.0, 4.0])
    alias = leaf(ctx, [9.0]).copy(ctx, cell.view(ctx, 4, (1,)))
    whole = cell.set(ctx, leaf(ctx, [7.0, 8.0]), 8)
    ctx.forward(alias).compute(alias.scale(ctx, 2.0), whole)
    assert whole.numpy().tolist() == [1.0, 9.0, 7.0, 8.0]


@pytest.mark.parametrize(
    ("shape", "source", "strides", "where"),
    [
        ((4, 5), (2, 2), (8,), lambda x: x[:2, 0:4:2]),
        ((4, 3, 2), (1, 3), (8,), lambda x: x.reshape((24,), order="F")[np.array([[0, 8, 16]])]),
    ],
)
@pytest.mark.parametrize("dtype", [*FLOATS, DType.I32], ids=str)
def test_set_writes_a_region_of_its_own_strides(ctx, shape, source, strides, where, dtype):
    fresh = np.arange(1.0, 1 + math.prod(source)).reshape(source, order="F")
    x = leaf(ctx, np.full(shape, 100.0), dtype)
    y = x.set(ctx, leaf(ctx, fresh), 0, *[n * dtype.type_size for n in strides])
    expected = np.full(math.prod(shape), 100.0)
    spots = where(np.arange(expected.size).reshape(shape, order="F"))
    expected[spots.ravel(order="F")] = fresh.ravel(order="F")
    np.testing.assert_array_equal(value(ctx, y), expected.reshape(shape, order="F"))
    np.testing.assert_array_equal(x.numpy().T, expected.reshape(shape, order="F"))


def test_set_into_a_view_returns_an_alias_of_the_view(ctx):
    x = leaf(ctx, np.zeros((4, 5)))
    view = x.slice(ctx, 1, 0, 5, 2)  # (4, 3)
    y = view.set(ctx, leaf(ctx, np.ones((2, 2))), 4)
    assert value(ctx, y).T.tolist() == [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert x.numpy().tolist() == [[0, 1, 1, 0], [0] * 4, [0, 1, 1, 0], [0] * 4, [0] * 4]


def test_set_into_quantized_blocks_keeps_the_others(ctx):
    x = leaf(ctx, numbers(np.random.default_rng(1), (64, 3)), DType.Q8_0)
    before = np.frombuffer(x.bytes(), np.uint8).reshape(3, 2, 34)
    ctx.compute(x.set(ctx, leaf(ctx, np.ones((32, 2))), 34 + 68))  # the second block of rows 1 and 2
    after = np.frombuffer(x.bytes(), np.uint8).reshape(3, 2, 34)
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1:, 0], before[1:, 0])
    np.testing.assert_array_equal(x.numpy()[1:, 32:], held(np.ones((32, 2)), DType.Q8_0).T)


def test_a_kernel_of_set_gets_the_written_tensor_in_its_own_shape():
    def set_(x, t2, offset, *strides):
        x[: t2.shape[0], : t2.shape[1]] = t2
        return x

    with type("Setting", (CpuRef,), {"kernels": {**CpuRef.kernels, ops.set: set_}})() as backend:
        ctx = backend.new_context()
        x = ctx.zeros(DType.F16, 5, 4)
        y = x.set(ctx, ctx.from_floats(np.ones((2, 3))), 0)
        ctx.compute(y)
        assert y.numpy().tolist() == [[1, 1, 1, 0, 0]] * 2 + [[0] * 5] * 2


def test_one_table_serves_every_column_of_ids(ctx):
    table = leaf(ctx, np.arange(6.0).reshape(3, 2).T)
    y = table.rows(ctx, ctx.from_ints([[[0, 1], [2, 2]]]))  # (2, 2, 1)
    assert value(ctx, y).T.tolist() == [[[[0, 1], [2, 3]], [[4, 5], [4, 5]]]]
    assert table.rows(ctx, ctx.from_ints([0, 1, 2, 0], 4, 1, 1, 1)).shape == (2, 4, 1, 1)
    assert value(ctx, table.rows(ctx, ctx.from_ints([], 0))).shape == (2, 0)
    assert value(ctx, table.rows(ctx, ctx.empty(DType.I32).from_ints([2]))).tolist() == [[4.0], [5.0]]
