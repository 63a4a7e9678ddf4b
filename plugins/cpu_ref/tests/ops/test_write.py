"""Writes into leaves, and rows by number: changed and unchanged elements, and the order of writes and reads."""

import math
from itertools import product

import numpy as np
import pytest
from exact import FLOATS, LAYOUTS, leaf, numbers, rounded, value

from backbay import DType, UnsupportedOpError, ops
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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_copy_takes_elements_in_logical_order(ctx, dtype, layout):
    data = numbers(np.random.default_rng(1), (4, 3, 2), dtype)
    dst = ctx.zeros(DType.F16, 6, 4).permute(ctx, 1, 0)  # (4, 6)
    ctx.compute(leaf(ctx, data, dtype, layout).copy(ctx, dst))
    np.testing.assert_array_equal(value(ctx, dst), rounded(data, DType.F16).reshape((4, 6), order="F"))


@pytest.mark.parametrize(
    ("source", "target"), [(DType.F32, DType.F32), (DType.F32, DType.F16), (DType.I32, DType.Q8_0)]
)
def test_an_empty_copy_writes_nothing(ctx, source, target):
    dst = ctx.zeros(target, 0, 3)
    assert value(ctx, ctx.empty(source, 3, 0).copy(ctx, dst)).shape == (0, 3)


def test_a_float_loses_its_fraction_in_an_integer(ctx):
    x = leaf(ctx, [1.9, -1.9, 0.5, -0.5, 2e9])
    for dtype in (DType.I32, DType.I64):
        assert value(ctx, x.cast(ctx, dtype)).tolist() == [1, -1, 0, 0, 2000000000]
    assert value(ctx, leaf(ctx, [math.nan, math.inf]).cast(ctx, DType.I32)).shape == (2,)


def test_an_overlapping_copy_reads_before_it_writes(ctx):
    x = leaf(ctx, np.arange(8.0))
    forwards = x.slice(ctx, 0, 0, 6).copy(ctx, x.slice(ctx, 0, 2, 8))
    ctx.compute(forwards)
    assert x.numpy().tolist() == [0, 1, 0, 1, 2, 3, 4, 5]
    square = leaf(ctx, [[1.0, 2.0], [3.0, 4.0]])
    ctx.compute(square.permute(ctx, 1, 0).copy(ctx, square))
    assert square.numpy().T.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_a_copy_into_a_view_leaves_the_rest_alone(ctx):
    dst = leaf(ctx, np.full((4, 3), 7.0))
    ctx.compute(leaf(ctx, [1.0, 2.0]).copy(ctx, dst.view(ctx, 4 * 5, (2,))))
    assert dst.numpy().tolist() == [[7, 7, 7, 7], [7, 1, 2, 7], [7, 7, 7, 7]]


def test_a_copy_fills_a_leaf_of_another_context(backend):
    with backend.new_context() as kept, backend.new_context() as step:
        cache = kept.zeros(DType.F16, 2, 3)
        step.compute(leaf(step, [[1.0], [2.0]]).copy(step, cache.slice(step, 1, 1, 2)))
        assert cache.numpy().tolist() == [[0, 0], [1, 2], [0, 0]]
        with backend.new_context() as later:
            assert value(later, cache.scale(later, 2.0)).T.tolist() == [[0, 0], [2, 4], [0, 0]]


def test_writes_and_reads_keep_the_order_of_forward(ctx):
    cell = ctx.zeros(DType.F32, 1)
    before = cell.scale(ctx, 1.0)
    first = leaf(ctx, [1.0]).copy(ctx, cell)
    between = cell.scale(ctx, 1.0)
    second = leaf(ctx, [2.0]).copy(ctx, cell)
    after = second.scale(ctx, 1.0)
    ctx.forward(before, first, between, after).compute(before, between, after)
    assert [x.numpy()[0] for x in (before, between, after)] == [0.0, 1.0, 2.0]
    ctx.compute(before)
    assert before.numpy()[0] == 2.0  # the run before left it


def test_an_alias_reads_all_writes_to_its_tensor(ctx):
    cell = leaf(ctx, [1.0, 2.0, 3.0, 4.0])
    alias = leaf(ctx, [9.0]).copy(ctx, cell.view(ctx, 4, (1,)))
    whole = cell.set(ctx, leaf(ctx, [7.0, 8.0]), 8)
    ctx.forward(alias).compute(alias.scale(ctx, 2.0), whole)
    assert whole.numpy().tolist() == [1.0, 9.0, 7.0, 8.0]


SETS = [  # destination, source, offset in elements, strides in elements, where it goes
    ((6,), (2,), 3, (), lambda x: x[3:5]),
    ((4, 5), (2, 3), 5, (), lambda x: x[1:3, 1:4]),
    ((4, 5), (2, 2), 0, (8,), lambda x: x[:2, 0:4:2]),
    ((4, 5), (3,), 17, (), lambda x: x[1:4, 4]),
    ((4, 3, 2), (4, 2, 2), 4, (), lambda x: x[:, 1:3]),
    ((4, 3, 2), (1, 3), 0, (8,), lambda x: x.reshape((24,), order="F")[np.array([[0, 8, 16]])]),
    ((4, 5), (0, 2), 0, (), lambda x: x[:0, :2]),
    ((), (), 0, (), lambda x: x[...]),
]


@pytest.mark.parametrize("case", SETS)
@pytest.mark.parametrize("dtype", [*FLOATS, DType.I32], ids=str)
def test_set_writes_a_region_and_nothing_else(ctx, case, dtype):
    shape, source, offset, strides, where = case
    data = np.full(shape, 100.0)
    fresh = np.arange(1.0, 1 + math.prod(source)).reshape(source, order="F")
    x = leaf(ctx, data, dtype)
    size = dtype.type_size
    y = x.set(ctx, leaf(ctx, fresh), offset * size, *[n * size for n in strides])
    assert (y.dtype, y.shape) == (dtype, shape)
    expected = data.copy(order="F")
    spots = where(np.arange(data.size).reshape(shape, order="F"))
    np.put(flat := expected.ravel(order="F"), spots.ravel(order="F"), fresh.ravel(order="F"))
    np.testing.assert_array_equal(value(ctx, y), flat.reshape(shape, order="F"))
    np.testing.assert_array_equal(x.numpy().T, flat.reshape(shape, order="F"))


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


ROWS = [  # destination, source, ids
    ((4, 6), (4, 3), [5, 0, 2]), ((4, 6), (4,), [3]), ((4, 6), (4, 0), []), ((4, 6, 2), (4, 2, 2), [1, 4]),
    ((4, 6, 2), (4, 2, 2), [[1, 4], [0, 5]]), ((4, 6, 2, 2), (4, 1, 2, 2), [[[1], [2]], [[3], [4]]]),
    ((4, 6, 4), (4, 2, 4), [[1, 4], [0, 5]]), ((1, 6), (1, 2), [3, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "source", "ids"), ROWS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_go_where_ids_say(ctx, shape, source, ids, layout):
    for dtype, kind in product(FLOATS, (DType.I32, DType.I64)):
        random = np.random.default_rng(3)
        data, fresh = numbers(random, shape, dtype), numbers(random, source)
        x = leaf(ctx, data, dtype, layout)
        where = np.array(ids, int).T
        y = x.set_rows(
            ctx, leaf(ctx, fresh, DType.F32, layout), ctx.empty(kind, *where.shape).from_ints(where.T)
        )
        spots, wide = (
            where.reshape((*where.shape, *[1] * (3 - where.ndim))),
            fresh.reshape((*source, 1, 1, 1)[:4]),
        )
        expected = data.reshape((*shape, 1, 1)[:4]).copy()
        for i, a, b in np.ndindex(wide.shape[1:4]):
            expected[:, spots[i, a % spots.shape[1], b % spots.shape[2]], a, b] = rounded(
                wide[:, i, a, b], dtype
            )
        np.testing.assert_array_equal(value(ctx, y), expected.reshape(shape))


def test_one_of_the_rows_is_kept_where_ids_repeat(ctx):
    x = ctx.zeros(DType.F32, 2, 3)
    ctx.compute(x.set_rows(ctx, leaf(ctx, [[1.0, 2.0], [1.0, 2.0]]), ctx.from_ints([1, 1])))
    assert x.numpy()[1].tolist() in ([1.0, 1.0], [2.0, 2.0])
    assert x.numpy()[[0, 2]].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0, DType.BF16], ids=str)
def test_rows_of_a_cache_that_are_not_written_keep_their_bits(ctx, dtype):
    random = np.random.default_rng(4)
    cache = leaf(ctx, numbers(random, (64, 9)), dtype)
    before = np.frombuffer(cache.bytes(), np.uint8).reshape(9, -1)
    fresh, ids = numbers(random, (64, 3)), ctx.from_ints([7, 2, 4])
    ctx.compute(cache.set_rows(ctx, leaf(ctx, fresh), ids))
    after = np.frombuffer(cache.bytes(), np.uint8).reshape(9, -1)
    others = [0, 1, 3, 5, 6, 8]
    np.testing.assert_array_equal(after[others], before[others])
    np.testing.assert_array_equal(cache.numpy()[[7, 2, 4]], held(fresh, dtype).T)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 2), (4, 6, 1, 2), (4, 6, 2, 2), (4,), (1, 6)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_picked_by_ids(ctx, shape, layout):
    random = np.random.default_rng(5)
    count = (*shape, 1)[1]
    for dtype in (*FLOATS, DType.I32):
        layout = "plain" if dtype is DType.I32 and layout == "stepped" else layout
        data = random.integers(-9, 9, shape) if dtype is DType.I32 else numbers(random, shape, dtype)
        ids = random.integers(0, count, (5, *[(*shape, 1, 1, 1)[n] for n in (2, 3)]))  # some repeat
        y = leaf(ctx, data, dtype, layout).rows(
            ctx, leaf(ctx, ids, DType.I32, layout if layout != "stepped" else "plain")
        )
        wide = data.reshape((*shape, 1, 1, 1)[:4])
        expected = np.empty((shape[0], *ids.shape))
        for i, a, b in np.ndindex(ids.shape):
            expected[:, i, a, b] = wide[:, ids[i, a, b], a, b]
        assert y.dtype is (DType.I32 if dtype is DType.I32 else DType.F32)
        np.testing.assert_array_equal(value(ctx, y).reshape(expected.shape), expected)


def test_one_table_serves_every_column_of_ids(ctx):
    table = leaf(ctx, np.arange(6.0).reshape(3, 2).T)
    y = table.rows(ctx, ctx.from_ints([[[0, 1], [2, 2]]]))  # (2, 2, 1)
    assert value(ctx, y).T.tolist() == [[[[0, 1], [2, 3]], [[4, 5], [4, 5]]]]
    assert table.rows(ctx, ctx.from_ints([0, 1, 2, 0], 4, 1, 1, 1)).shape == (2, 4, 1, 1)
    assert value(ctx, table.rows(ctx, ctx.from_ints([], 0))).shape == (2, 0)
    assert value(ctx, table.rows(ctx, ctx.empty(DType.I32).from_ints([2]))).tolist() == [[4.0], [5.0]]


@pytest.mark.parametrize("dtype", [DType.Q4_K, DType.Q8_K], ids=str)
def test_a_type_without_an_encoder_is_refused_before_anything_runs(ctx, dtype):
    x = leaf(ctx, np.ones((256, 2)))
    done = ctx.zeros(DType.F32, 256, 2)
    first = x.copy(ctx, done)
    for y in (
        x.cast(ctx, dtype),
        x.copy(ctx, ctx.zeros(dtype, 256, 2)),
        ctx.zeros(dtype, 256, 2).set(ctx, x, 0),
    ):
        with pytest.raises(UnsupportedOpError, match=rf"cannot run \w+: .*{dtype}"):
            ctx.compute(first, y)
        assert not done.numpy().any()
        ctx.recording._roots.clear()
