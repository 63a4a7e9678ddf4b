"""Views by bytes, and copies whose bits or ranks the conformance suite does not draw."""

import numpy as np
from exact import leaf, numbers, value

from backbay import DType


def test_a_dimension_beyond_both_ranks_is_concatenated(ctx):
    x, y = (numbers(np.random.default_rng(i), (4, 3)) for i in (1, 2))
    for dim in (2, 3):
        wide = [a.reshape((4, 3, 1, 1)[: dim + 1]) for a in (x, y)]
        z = leaf(ctx, x).concat(ctx, leaf(ctx, y), dim)
        np.testing.assert_array_equal(value(ctx, z), np.concatenate(wide, dim))


def test_a_shape_is_inferred_and_may_gain_dimensions(ctx):
    data = numbers(np.random.default_rng(1), (4, 3, 2))
    x = leaf(ctx, data)
    np.testing.assert_array_equal(value(ctx, x.reshape(ctx, -1, 2)), data.reshape((12, 2), order="F"))
    np.testing.assert_array_equal(value(ctx, x.contiguous(ctx, 3, -1)), data.reshape((3, 8), order="F"))
    np.testing.assert_array_equal(
        value(ctx, x.permute(ctx, 3, 0, 1, 2)), data[..., None].transpose(1, 2, 3, 0)
    )


def test_nothing_is_repeated_and_cut_into_no_pieces(ctx):
    assert value(ctx, ctx.zeros(DType.F32, 4, 3, 2).repeat_4d(ctx, 4, 0, 2, 3)).shape == (4, 0, 2, 3)
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


def test_bits_are_copied_without_change(ctx):
    payloads = np.uint32(
        [0x7F800001, 0xFFC12345, 0x80000000, 1]
    )  # a signalling NaN, one with a payload, -0, the least
    x = ctx.from_bytes(DType.F32, payloads.tobytes(), 2, 2)
    for y in (x.permute(ctx, 1, 0).contiguous(ctx).permute(ctx, 1, 0).contiguous(ctx), x.duplicate(ctx)):
        ctx.compute(y)
        assert y.bytes() == payloads.tobytes()
