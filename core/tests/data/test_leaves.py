"""Leaves: what goes in, what comes out, and what may be read when."""

import array

import numpy as np
import pytest

from backbay import BackbayError, DType, DTypeError, NotComputedError, ShapeError


def test_data_are_arrays_lists_or_buffers(ctx):
    expected = [1.0, 2.5, -3.0, 0.0]
    for data in (
        expected,
        np.array(expected),
        array.array("f", expected),
        np.array(expected, np.float32).tobytes(),
    ):
        assert ctx.from_floats(data, 2, 2).floats().tolist() == expected


def test_a_numpy_array_gives_its_reversed_shape(ctx):
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = ctx.from_floats(data)
    assert x.shape == (3, 2)
    assert (x.numpy() == data).all()
    assert ctx.from_floats(np.asfortranarray(data)).floats().tolist() == [0, 1, 2, 3, 4, 5]


def test_what_is_read_is_owned(ctx):
    x = ctx.from_floats([1, 2])
    for read in (x.floats, x.numpy):
        got = read()
        got[:] = 7
        assert x.floats().tolist() == [1, 2]
    data = np.array([1, 2], np.float32)
    x.from_floats(data)
    data[:] = 9
    assert x.floats().tolist() == [1, 2]


def test_sizes_must_fit(ctx):
    with pytest.raises(ShapeError, match="3 numbers do not fill the 4 of f32"):
        ctx.from_floats([1, 2, 3], 4)
    with pytest.raises(ShapeError, match="3 bytes do not fill the 8"):
        ctx.from_bytes(DType.F16, b"abc", 4)
    with pytest.raises(ShapeError, match="regular"):
        ctx.from_floats([[1, 2], [3]], 3)


def test_integers_must_fit_their_type(ctx):
    assert ctx.from_ints([-(2**31), 2**31 - 1]).numpy().tolist() == [-(2**31), 2**31 - 1]
    with pytest.raises(ShapeError, match="cannot hold 2147483648"):
        ctx.from_ints([2**31])
    wide = ctx.empty(DType.I64, 1).from_ints([2**31])
    assert wide.numpy().dtype == np.int64 and wide.numpy().tolist() == [2**31]
    with pytest.raises(DTypeError, match="call from_floats"):
        ctx.from_ints([1.5])
    with pytest.raises(DTypeError, match="fractions"):
        ctx.empty(DType.I32, 1).from_floats([1.5])
    assert ctx.empty(DType.I32, 1).from_floats([2.0]).numpy().tolist() == [2]
    with pytest.raises(DTypeError, match="expected numbers"):
        ctx.from_floats(["a"])


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.int64, np.int32, np.float16, np.float64])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64])
def test_an_array_of_any_type_means_its_numbers(ctx, dtype, kind):
    numbers = np.array([[0, 1, 2], [100, 7, 3]], kind)
    for data in (
        numbers,
        np.asfortranarray(numbers),
        numbers[::-1][::-1],
        numbers.astype(numbers.dtype.newbyteorder()),
    ):
        assert ctx.empty(dtype, 3, 2).from_floats(data).floats().tolist() == [0, 1, 2, 100, 7, 3]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_ids_of_any_array_are_checked(ctx, kind):
    ids = ctx.from_ints([0, 1])
    ctx.from_floats(np.ones((3, 4))).rows(ctx, ids)
    for wrong in (-1, 3, 2**31 - 1, -(2**31)):
        with pytest.raises(ShapeError, match=rf"must be in \[0, 3\), got {wrong}"):
            ids.from_ints(np.array([2, wrong], kind))


@pytest.mark.parametrize(("dtype", "step"), [(DType.F16, 2**-11), (DType.BF16, 2**-8), (DType.Q8_0, 1 / 127)])
def test_numbers_are_converted_to_the_dtype(ctx, dtype, step):
    numbers = np.linspace(-1, 1, 64, dtype=np.float32)
    x = ctx.empty(dtype, 32, 2).from_floats(numbers)
    assert abs(x.floats() - numbers).max() <= step
    assert len(x.bytes()) == x.nbytes
    again = ctx.from_bytes(dtype, x.bytes(), 32, 2)
    assert (again.floats() == x.floats()).all()


def test_numpy_writes_to_an_array_of_its_shape(ctx):
    x = ctx.from_floats([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    room = np.zeros(8, np.float32)
    out = room[:6].reshape(2, 3)
    assert x.numpy(out) is out
    assert room.tolist() == [1, 2, 3, 4, 5, 6, 0, 0]
    y = x.scale(ctx, 2.0)
    ctx.compute(y)
    assert y.numpy(out).tolist() == [[2, 4, 6], [8, 10, 12]]
    assert ctx.empty(DType.BF16, 3, 2).from_floats(x.numpy()).numpy(out).tolist() == x.numpy().tolist()
    with pytest.raises(ShapeError, match=r"numpy: out must have the shape \[2, 3\], got \[3, 2\]"):
        x.numpy(room[:6].reshape(3, 2))


def test_numpy_keeps_native_types_and_gives_others_as_float32(ctx):
    kinds = {
        DType.F32: "f4",
        DType.F16: "f2",
        DType.BF16: "f4",
        DType.Q8_0: "f4",
        DType.I32: "i4",
        DType.I64: "i8",
    }
    for dtype, kind in kinds.items():
        read = ctx.zeros(dtype, 32, 2).numpy()
        assert read.dtype == np.dtype(kind) and read.shape == (2, 32) and not read.any()


def test_a_type_that_nothing_quantizes_to_is_refused(ctx):
    with pytest.raises(DTypeError, match="q4_k"):
        ctx.empty(DType.Q4_K, 256).from_floats(np.ones(256))
    assert ctx.from_bytes(DType.Q4_K, bytes(144), 256).floats().tolist() == [0.0] * 256


def test_arange_excludes_its_end(ctx):
    assert ctx.arange(0, 3).floats().tolist() == [0, 1, 2]
    assert ctx.arange(1, 2, 0.5).floats().tolist() == [1, 1.5]
    assert ctx.arange(0, 4, 2, DType.I32).numpy().tolist() == [0, 2]
    assert ctx.arange(2, 0, -1, DType.F16).numpy().tolist() == [2, 1]
    assert ctx.arange(3, 3).shape == (0,)
    for impossible in ((0, 1, 0), (0, float("inf")), (0, float("nan")), (0, 1e30)):
        with pytest.raises(ShapeError):
            ctx.arange(*impossible)


def test_shapes_keep_their_rank_and_strides_are_bytes(ctx):
    x = ctx.empty(DType.F32, 4, 3, 1)
    assert x.shape == (4, 3, 1) and [x.dim(n) for n in range(5)] == [4, 3, 1, 1, 1]
    assert [x.stride(n) for n in range(4)] == [4, 16, 48, 48]
    q = ctx.empty(DType.Q4_0, 64, 3)
    assert [q.stride(n) for n in range(3)] == [18, 36, 108]
    assert x.permute(ctx, 1, 0, 2).shape == (3, 4, 1)


def test_only_leaves_and_what_the_latest_compute_named_can_be_read(ctx):
    x = ctx.from_floats([1, 2])
    y, z = x.neg(ctx), x.scale(ctx, 3)
    with pytest.raises(NotComputedError):
        y.floats()
    ctx.compute(y)
    assert y.floats().tolist() == [-1, -2]
    with pytest.raises(NotComputedError):
        z.floats()
    ctx.compute(z)
    assert z.floats().tolist() == [3, 6]
    with pytest.raises(NotComputedError):
        y.floats()


def test_writing_a_leaf_makes_its_results_uncomputed(ctx):
    x = ctx.from_floats([1, 2])
    y = x.neg(ctx)
    ctx.compute(y)
    x.from_floats([5, 6])
    with pytest.raises(NotComputedError):
        y.floats()
    ctx.compute(y)
    assert y.floats().tolist() == [-5, -6]


def test_a_new_leaf_touches_no_result(ctx):
    y = ctx.from_floats([1, 2]).neg(ctx)
    ctx.compute(y)
    ctx.from_floats([3.0])
    ctx.zeros(DType.F32, 2)
    assert y.floats().tolist() == [-1, -2]


def test_writing_another_contexts_leaf_leaves_results_as_they_are(backend, ctx):
    other = backend.new_context()
    x = other.from_floats([1, 2])
    y = x.neg(ctx)
    ctx.compute(y)
    x.from_floats([5, 6])
    assert y.floats().tolist() == [-1, -2]


def test_a_result_is_no_leaf_to_write_to(ctx):
    y = ctx.from_floats([1, 2]).neg(ctx)
    with pytest.raises(DTypeError, match="is not a leaf"):
        y.from_floats([1, 2])


def test_ids_are_checked_when_they_are_used_and_at_every_write(ctx):
    table, ids = ctx.from_floats(np.eye(4)), ctx.from_ints([3, 0])
    picked = table.rows(ctx, ids)
    ctx.compute(picked)
    assert picked.numpy().tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]
    for wrong in ([0, 4], [-1, 0]):
        with pytest.raises(ShapeError, match=r"must be in \[0, 4\), got (4|-1)"):
            ids.from_ints(wrong)
    ctx.compute(picked)  # the refused writes changed nothing
    assert picked.numpy()[0].tolist() == [0, 0, 0, 1]
    with pytest.raises(ShapeError, match=r"must be in \[0, 2\), got 3"):
        ctx.from_floats(np.eye(2)).rows(ctx, ids)


def test_ids_through_a_view_are_checked_where_the_view_looks(ctx):
    ids = ctx.from_ints([9, 1, 0, 9])
    inner = ids.slice(ctx, 0, 1, 3)
    picked = ctx.from_floats(np.eye(2)).rows(ctx, inner)
    ctx.compute(picked)
    ids.from_ints([7, 0, 0, 7])
    with pytest.raises(ShapeError):
        ids.from_ints([0, 0, 5, 0])


def test_ids_that_were_never_written_do_not_run(ctx):
    ids = ctx.empty(DType.I32, 2)
    picked = ctx.from_floats(np.eye(4)).rows(ctx, ids)
    with pytest.raises(NotComputedError, match="never written"):
        ctx.compute(picked)
    ids.from_ints([1, 2])
    ctx.compute(picked)
    nothing = ctx.from_floats(np.eye(4)).rows(ctx, ctx.empty(DType.I32, 0))
    ctx.compute(nothing)
    assert nothing.shape == (4, 0)


def test_computed_ids_are_refused_unless_their_bound_is_static(ctx):
    table, scores = ctx.from_floats(np.eye(4)), ctx.from_floats([0.1, 0.9, 0.5, 0.2])
    best = scores.top_k(ctx, 2)
    picked = table.rows(ctx, best)
    ctx.compute(picked)
    assert picked.numpy().tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
    assert table.rows(ctx, scores.argsort(ctx).slice(ctx, 0, 0, 1)).shape == (4, 1)
    with pytest.raises(DTypeError, match="must be a leaf"):
        table.rows(ctx, best.contiguous(ctx))
    with pytest.raises(DTypeError, match="reach 3, but must stay below 2"):
        ctx.from_floats(np.eye(2)).rows(ctx, best)


def test_a_leaf_is_either_ids_or_written_by_graphs(ctx):
    table, source = ctx.from_floats(np.eye(4)), ctx.from_ints([1, 2])
    ids = ctx.from_ints([0, 0])
    table.rows(ctx, ids)
    with pytest.raises(DTypeError, match="serves as ids"):
        source.copy(ctx, ids)
    written = ctx.from_ints([0, 0])
    source.copy(ctx, written)
    with pytest.raises(DTypeError, match="a graph writes into"):
        table.rows(ctx, written)


def test_measuring_counts_bytes_and_holds_none():
    import backbay

    with backbay.open(None, backend="cpu_ref", params=backbay.BackendParams(alloc_memory=False)) as backend:
        ctx = backend.new_context()
        x = ctx.layer(0).zeros(DType.F32, 1 << 30, 1 << 10)  # 4 TiB
        y = x.neg(ctx)
        ctx.forward(y).reserve()
        report = backend.memory()
        assert report.cpu.cache[0].size == x.nbytes
        assert report.cpu.graph.size >= 3 * x.nbytes  # the result, and the operand as float64
        assert report.allocated() == 0
        with pytest.raises(BackbayError, match="only measures"):
            ctx.compute(y)
        with pytest.raises(BackbayError, match="only measures"):
            backend.load()
        with pytest.raises(NotComputedError, match="only measures"):
            x.floats()
