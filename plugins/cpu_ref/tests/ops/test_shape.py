"""Views and the copies that change a shape: elements move, and nothing happens to them."""

import math
from itertools import product

import numpy as np
import pytest
from exact import FLOATS, LAYOUTS, leaf, numbers, value

from backbay import DType

PLAIN = (*FLOATS, DType.I32, DType.I64)
A = (4, 3, 2)  # of the receiver; what moves is told by NumPy's indexing on arrays with dimension 0 first


def sliced(x, dim, low, high, step=1):
    return x[(*[slice(None)] * dim, slice(low, high, step))]


def flat(x, *shape):
    return x.reshape(shape, order="F")


def padded(x, *amounts):
    pairs = [(amounts[i], amounts[i + 1]) for i in range(0, len(amounts), 2)]
    wide = x.reshape((*x.shape, *[1] * (len(pairs) - x.ndim)))
    y = np.zeros([n + a + b for n, (a, b) in zip(wide.shape, pairs, strict=True)])
    y[tuple(slice(a, a + n) for n, (a, _) in zip(wide.shape, pairs, strict=True))] = wide
    return y


def repeated(x, *shape):
    wide = x.reshape((*x.shape, *[1] * (len(shape) - x.ndim)))
    y = np.empty(shape, x.dtype)
    for place in np.ndindex(shape):
        y[place] = wide[tuple(i % n for i, n in zip(place, wide.shape, strict=True))]
    return y


MOVES = [  # op, arguments, the same in NumPy, whether the receiver must be contiguous
    ("reshape", (6, 4), flat, True),
    ("reshape", ((2, 12),), lambda x, shape: flat(x, *shape), True),
    ("reshape", (-1, 2), lambda x, *_: flat(x, 12, 2), True),
    ("reshape", (24,), flat, True),
    ("permute", (1, 2, 0, 3), lambda x, *_: np.transpose(x, (2, 0, 1)), False),
    ("permute", (2, 1, 0), lambda x, *_: np.transpose(x, (2, 1, 0)), False),
    ("permute", (3, 0, 1, 2), lambda x, *_: np.transpose(x[..., None], (1, 2, 3, 0)), False),
    ("slice", (0, 1, 4), sliced, False),
    ("slice", (0, 0, 4, 3), sliced, False),
    ("slice", (1, 1, 3, 2), sliced, False),
    ("slice", (2, 1, 1), sliced, False),
    ("contiguous", (), lambda x: x, False),
    ("contiguous", (3, -1), lambda x, *_: flat(x, 3, 8), False),
    ("contiguous", (2, 2, 2, 3), flat, False),
    ("duplicate", (), lambda x: x, False),
    ("repeat", (1, 3), lambda x, dim, n: np.concatenate([x] * n, dim), False),
    ("repeat", (3, 2), lambda x, dim, n: np.stack([x] * n, dim), False),
    ("repeat", (0, 0), lambda x, dim, n: x[:0], False),
    ("repeat_4d", (8, 3, 4, 2), repeated, False),
    ("repeat_4d", (4, 0, 2, 3), repeated, False),
    ("repeat_4d", (4, 3, 2), repeated, False),
]
FLOAT_MOVES = [
    ("pad", (), lambda x: x, False),
    ("pad", (1, 0, 2), lambda x, a, b, c: padded(x, 0, a, 0, b, 0, c), False),
    ("pad", (0, 0, 0, 2), lambda x, *_: padded(x, 0, 0, 0, 0, 0, 0, 0, 2), False),
    ("pad_ext", (1, 2), lambda x, *p: padded(x, *p, 0, 0, 0, 0), False),
    ("pad_ext", (1, 0, 0, 3, 2, 1, 1, 0), padded, False),
]


def moved(ctx, dtype, layout, op, args, formula, contiguous):
    if contiguous and layout != "plain":
        return
    if dtype.is_integer:
        layout = "plain" if layout == "stepped" else layout  # NaN around it is no integer
        data = np.random.default_rng(1).integers(-(2**31), 2**31, A)
    else:
        data = numbers(np.random.default_rng(1), A, dtype)
    y = getattr(leaf(ctx, data, dtype, layout), op)(ctx, *args)
    expected = formula(data, *args)
    assert (y.dtype, y.shape) == (dtype, expected.shape)
    np.testing.assert_array_equal(value(ctx, y.contiguous(ctx)), expected)
    np.testing.assert_array_equal(value(ctx, y), expected)


@pytest.mark.parametrize(("op", "args", "formula", "contiguous"), MOVES)
def test_elements_move_unchanged(ctx, op, args, formula, contiguous):
    for dtype, layout in product(PLAIN, LAYOUTS):
        moved(ctx, dtype, layout, op, args, formula, contiguous)


@pytest.mark.parametrize(("op", "args", "formula", "contiguous"), FLOAT_MOVES)
def test_zeros_surround_padded_data(ctx, op, args, formula, contiguous):
    for dtype, layout in product(FLOATS, LAYOUTS):
        moved(ctx, dtype, layout, op, args, formula, contiguous)


@pytest.mark.parametrize(
    ("shape", "other", "dim"),
    [((4, 3), (2, 3), 0), ((4, 3), (4, 1), 1), ((4, 3), (4, 3), 2), ((4,), (4,), 3), ((0, 3), (2, 3), 0), ((4, 3), (4,), 1)],
    ids=str,
)  # fmt: skip
def test_one_tensor_follows_the_other_along_a_dimension(ctx, shape, other, dim):
    for dtype, layout in product(FLOATS, LAYOUTS):
        a, b = (
            numbers(np.random.default_rng(1), shape, dtype),
            numbers(np.random.default_rng(2), other, dtype),
        )
        y = leaf(ctx, a, dtype, layout).concat(ctx, leaf(ctx, b, dtype, layout), dim)
        wide = [x.reshape((*x.shape, *[1] * (max(2, dim + 1) - x.ndim))) for x in (a, b)]
        expected = np.concatenate(wide, dim).reshape(y.shape)
        np.testing.assert_array_equal(value(ctx, y), expected)


def test_a_stack_adds_no_dimension(ctx):
    x = [numbers(np.random.default_rng(i), (2, i)) for i in range(1, 4)]
    first, *others = (leaf(ctx, data) for data in x)
    y = first.stack(ctx, 1, *others)
    assert y.shape == (2, 6)
    np.testing.assert_array_equal(value(ctx, y), np.concatenate(x, 1))
    np.testing.assert_array_equal(value(ctx, first.stack(ctx, 0)), x[0])


def test_pieces_are_views_that_cover_a_dimension(ctx):
    data = numbers(np.random.default_rng(1), (2, 7))
    x = leaf(ctx, data)
    pieces = x.chunk(ctx, 1, 3)
    sections = x.chunk_sections(ctx, 1, 4, 0, 3)
    assert [p.shape for p in pieces] == [(2, 3), (2, 3), (2, 1)]
    assert [p.shape for p in sections] == [(2, 4), (2, 0), (2, 3)]
    ctx.compute(*pieces, *sections)
    for parts in (pieces, sections):
        np.testing.assert_array_equal(np.concatenate([p.numpy().T for p in parts], 1), data)
    assert ctx.empty(DType.F32, 2, 0).chunk(ctx, 1, 3) == []


def test_a_view_counts_bytes_from_the_first_element(ctx):
    data = np.arange(24.0).reshape(6, 4).T  # (4, 6)
    x = leaf(ctx, data)
    y = x.view(ctx, 4, (2, 3), (32,))  # from element 1, every second row
    np.testing.assert_array_equal(value(ctx, y), data[1:3, ::2])
    inner = y.view(ctx, 16, (2, 2), (8,))  # only the bytes behind y matter, not its strides
    np.testing.assert_array_equal(value(ctx, inner), [[5, 7], [6, 8]])
    assert value(ctx, x.view(ctx, 8, (3,))).tolist() == [2, 3, 4]
    np.testing.assert_array_equal(value(ctx, x.view(ctx, 0, (2, 3), (0,))), [[0, 0, 0], [1, 1, 1]])
    assert value(ctx, x.view(ctx, 96, (0, 3))).shape == (0, 3)
    assert value(ctx, y.view(ctx, -4, (1,))).tolist() == [0]


def test_a_view_reads_its_storage_when_it_is_used(ctx):
    x = leaf(ctx, [1.0, 2.0, 3.0])
    y = x.slice(ctx, 0, 1, 3).scale(ctx, 2.0)
    assert value(ctx, y).tolist() == [4.0, 6.0]
    x.from_floats([5, 6, 7])
    assert value(ctx, y).tolist() == [12.0, 14.0]


def test_bits_are_copied_without_change(ctx):
    payloads = np.uint32(
        [0x7F800001, 0xFFC12345, 0x80000000, 1]
    )  # a signalling NaN, one with a payload, -0, the least
    x = ctx.from_bytes(DType.F32, payloads.tobytes(), 2, 2)
    for y in (x.permute(ctx, 1, 0).contiguous(ctx).permute(ctx, 1, 0).contiguous(ctx), x.duplicate(ctx)):
        ctx.compute(y)
        assert y.bytes() == payloads.tobytes()


@pytest.mark.parametrize(
    ("start", "stop", "step", "dtype"),
    [(0, 5, 1, DType.F32), (2, 3.1, 0.25, DType.F32), (5, 0, -2, DType.I32), (3, 3, 1, DType.I64), (0, 4, 1, DType.F16)],
)  # fmt: skip
def test_a_range_ends_before_stop(ctx, start, stop, step, dtype):
    count = max(0, math.ceil((stop - start) / step))
    x = ctx.arange(start, stop, step, dtype)
    assert (x.dtype, x.numpy().tolist()) == (dtype, [start + i * step for i in range(count)])
