"""Rounding to each dtype: once, from float64, ties to even, NaN and the ends of the range kept."""

import math

import numpy as np
import pytest
from exact import FLOATS, FORMATS, leaf, rounded, value

from backbay import DType
from backbay.plugin import decode, encode

NAN, INF = math.nan, math.inf


def hard(dtype):
    """Float64 numbers at every kind of tie of a float, and just beside the ties."""
    bits, least, end = FORMATS[dtype]
    random = np.random.default_rng(1)
    whole = random.integers(2 ** (bits - 1), 2**bits, 300) + 0.5  # halfway between two neighbours
    ties = np.ldexp(whole, random.integers(least, end - bits, 300))
    low = np.ldexp(np.arange(0.0, 9.0) + 0.5, least)  # of subnormals
    top = np.ldexp(2.0**bits - np.array([1.0, 0.5, 0.75, 0.25]), end - bits)
    near = [x * (1 + side * 2.0**-k) for x in (ties, low, top) for k in (20, 30, 40, 52) for side in (1, -1)]
    plain = np.concatenate([ties, low, top, *near, [0.0, INF, NAN, 1e300, 5e-324, 2.0**end]])
    return np.concatenate([plain, -plain])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_numbers_are_rounded_once_from_float64(dtype):
    x = hard(dtype)
    with np.errstate(all="ignore"):
        y = decode(encode(x, dtype), dtype).astype(float)
    np.testing.assert_array_equal(y, rounded(x, dtype))
    np.testing.assert_array_equal(np.signbit(y[~np.isnan(x)]), np.signbit(x[~np.isnan(x)]))


def test_a_number_beside_a_tie_of_bf16_is_not_rounded_to_f32_first(ctx):
    tie = 1 + 2.0**-8
    x = leaf(ctx, [tie, tie * (1 + 2**-40), tie * (1 - 2**-40)], DType.BF16)
    assert x.numpy().tolist() == [1.0, 1 + 2.0**-7, 1.0]
    above = leaf(ctx, [1.0], DType.BF16).add(ctx, leaf(ctx, [2.0**-8 * (1 + 2**-23)]))
    assert value(ctx, above).tolist() == [1 + 2.0**-7]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_casts_round_to_nearest_and_overflow_to_infinity(ctx, dtype):
    with np.errstate(over="ignore"):
        x = hard(dtype).astype(np.float32)
    y = value(ctx, leaf(ctx, x).cast(ctx, dtype))
    np.testing.assert_array_equal(y.astype(float), rounded(x.astype(float), dtype))


def test_infinities_and_nan_of_the_host_reach_every_float(ctx):
    for dtype in FLOATS:
        x = leaf(ctx, [INF, -INF, NAN, 1e39, -1e39], dtype)
        np.testing.assert_array_equal(x.numpy(), [INF, -INF, NAN, INF, -INF])


def test_a_nan_keeps_its_sign_and_becomes_quiet_in_bf16(ctx):
    bits = np.uint32([0x7F800001, 0xFF800001, 0x7FC00000, 0xFFFFFFFF, 0x7FABCDEF])
    y = ctx.from_bytes(DType.F32, bits.tobytes(), 5).cast(ctx, DType.BF16)
    ctx.compute(y)
    got = np.frombuffer(y.bytes(), np.uint16)
    assert [hex(n) for n in got & 0xFFC0] == ["0x7fc0", "0xffc0", "0x7fc0", "0xffc0", "0x7fc0"]
    assert np.isnan(y.numpy()).all()


def test_every_bf16_survives_the_way_through_f32(ctx):
    bits = np.arange(2**16, dtype=np.uint16)
    bits = bits[(bits & 0x7F80 != 0x7F80) | (bits & 0x7F == 0)]  # all but NaN
    y = ctx.from_bytes(DType.BF16, bits.tobytes(), bits.size).cast(ctx, DType.F32).cast(ctx, DType.BF16)
    ctx.compute(y)
    np.testing.assert_array_equal(np.frombuffer(y.bytes(), np.uint16), bits)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "data", [[True, False], np.uint8([1, 0]), np.int64([2**53, 1]), np.float16([1, 2])], ids=str
)
def test_numbers_of_any_kind_become_floats(ctx, dtype, data):
    x = leaf(ctx, data, dtype)
    np.testing.assert_array_equal(x.numpy().astype(float), rounded(np.asarray(data, float), dtype))


def test_large_integers_are_rounded_once(ctx):
    data = np.array([2**53 + 1, 2**62 + 2**38 + 1, 2**62 + 2**38, -(2**63), 2**24 + 1, 2**24 + 3])
    x = ctx.empty(DType.I64, data.size).from_ints(data)
    exact = [float(np.float32(2.0**53)), 2.0**62 + 2.0**39, 2.0**62, -(2.0**63), 2.0**24, 2.0**24 + 4]
    assert value(ctx, x.cast(ctx, DType.F32)).tolist() == exact
