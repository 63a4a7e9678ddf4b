"""Native products of quantized weights and columns, called directly, compared with float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from repacked import repacked

from backbay import DType
from backbay.plugin import decode
from backbay_native import FORMATS, MOST_ALONE, multiply, tensor_of
from backbay_native.calls import custom_op, encode_columns
from backbay_native.trial_cases import SCALES, random_blocks

X8 = {"Q4_0_X8": DType.Q4_0, "Q4_K_X8": DType.Q4_K}
SHAPES = [(1, 256), (3, 512), (8, 256), (31, 1024), (33, 768), (64, 2048), (72, 8192), (130, 1280)]
ROUNDED = 1e-6  # of the sum of magnitudes


@pytest.fixture(params=FORMATS)
def format_(request, native):
    if request.param not in native[1]:
        pytest.skip("no code for this processor")
    return request.param


@pytest.fixture
def product(native, format_):
    """Multiplies weights in the format and columns."""
    code, formats = native
    return partial(multiply, code, formats[format_])


@pytest.fixture
def product_of_codes(native, format_):
    """The op that multiplies weights in the format and columns, encoded before; it is called for each thread."""
    code, formats = native
    number = formats[format_]
    return lambda result, w, x, *following: custom_op(
        code, "products", result, [w, encode_columns(code, number, x), *following], number
    )


def weights_of(format_: str, rows: int, inner: int, blocks=None):
    """A tensor of random weights in a format, and the numbers that they stand for."""
    dtype = X8.get(format_) or DType[format_]
    if blocks is None:
        blocks = random_blocks(dtype, rows * inner, np.random.default_rng(rows))
    blocks = blocks.reshape(rows, -1, dtype.type_size)
    numbers = decode(blocks, dtype).reshape(rows, inner).astype(np.float64)
    data = repacked(blocks, dtype) if format_ in X8 else np.ascontiguousarray(blocks)
    return tensor_of(data, dtype, (inner, rows)), numbers


def rounded(x):
    """Columns as their codes tell them: 32 numbers share a scale."""
    blocks = x.reshape(len(x), -1, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    codes = np.rint(blocks / np.where(scale > 0, scale, 1))
    return (codes * scale).reshape(x.shape).astype(np.float64)


@pytest.mark.parametrize(("rows", "inner"), SHAPES)
@pytest.mark.few(24)
def test_products_are_right_for_any_number_of_rows(product, format_, rows, inner) -> None:
    if format_ in X8:
        rows = -(-rows // 8) * 8
    w, numbers = weights_of(format_, rows, inner)
    x = np.random.default_rng(inner).integers(-127, 128, (7, inner)).astype(np.float32)
    x[:, ::32] = 127  # so that codes are exact
    error = np.abs(product(w, x) - x @ numbers.T)
    assert (error <= ROUNDED * (np.abs(x) @ np.abs(numbers.T))).all()


@pytest.mark.parametrize("code", [0x7F, 0x80, 0x81, 0xFF])
@pytest.mark.parametrize("columns", [1, 7, 40])
def test_sums_of_the_largest_codes_overflow_nothing(product, format_, code, columns) -> None:
    dtype = X8.get(format_) or DType[format_]
    blocks = random_blocks(dtype, 8 * 512, np.random.default_rng(8)).reshape(-1, dtype.type_size)
    scales = {place + n for place in SCALES[dtype] for n in range(2)}
    blocks[:, [n for n in range(dtype.type_size) if n not in scales]] = code
    w, numbers = weights_of(format_, 8, 512, blocks)
    signs = np.where(np.arange(columns)[:, None] % 3, 1, np.where(np.arange(512) % 2, 1, -1))
    x = np.float32(127) * signs.astype(np.float32)
    error = np.abs(product(w, x) - x @ numbers.T)
    assert (error <= ROUNDED * (np.abs(x) @ np.abs(numbers.T))).all()


@pytest.mark.parametrize("inner", [256, MOST_ALONE, 1536])
@pytest.mark.few(12)
def test_a_column_has_the_same_result_alone_and_among_others(product, format_, inner) -> None:
    w, numbers = weights_of(format_, 40, inner)
    x = np.random.default_rng(3).standard_normal((300, inner)).astype(np.float32)
    alone = np.concatenate([product(w, x[n : n + 1]) for n in range(40)])
    for count in (*range(2, 41), 300):
        np.testing.assert_array_equal(product(w, x[:count])[:40], alone[:count])
    bound = 1.5 / 127 * np.abs(x).max() * np.abs(numbers).sum(1)
    assert (np.abs(alone - x[:40] @ numbers.T) < bound).all()


def test_numbers_of_any_magnitude_keep_their_precision(product, format_) -> None:
    w, numbers = weights_of(format_, 16, 512)
    x = np.random.default_rng(5).standard_normal((6, 512)).astype(np.float32)
    x *= np.float32([0, 1e-40, 1e-33, 1e-20, 1, 1e20])[:, None]
    found, right = product(w, x), rounded(x) @ numbers.T
    size = np.abs(rounded(x)) @ np.abs(numbers.T)
    assert not found[0].any()
    assert (np.abs(found - right)[1] <= 1e-3 * size[1]).all()  # subnormal numbers have few digits
    assert (np.abs(found - right)[2:] <= 1e-5 * size[2:]).all()


def test_unusual_numbers_stay_in_their_column(product, format_) -> None:
    w, _numbers = weights_of(format_, 24, 512)
    x = np.random.default_rng(6).standard_normal((5, 512)).astype(np.float32)
    plain = product(w, x)
    x[1, 77], x[3, 400] = np.nan, np.inf
    found = product(w, x)
    assert np.isnan(found[1]).all()
    assert not np.isfinite(found[3]).any()
    np.testing.assert_array_equal(found[[0, 2, 4]], plain[[0, 2, 4]])


def test_the_outermost_codes_and_scales_are_exact(product, format_) -> None:
    """All codes at one end, with the largest scales: sums of 16 bits would overflow."""
    dtype = X8.get(format_) or DType[format_]
    for code in (0, 255, 128, 127):
        blocks = np.full((8, 2048 // dtype.block_size, dtype.type_size), code, np.uint8)
        for place in SCALES[dtype]:
            blocks[..., place : place + 2] = np.float16([65504]).view(np.uint8)
        w, numbers = weights_of(format_, 8, 2048, blocks)
        x = np.full((3, 2048), 127, np.float32) * np.float32([1, -1, 0])[:, None]
        np.testing.assert_allclose(product(w, x), x @ numbers.T, rtol=1e-5)


def test_nothing_is_written_outside_of_the_result(product_of_codes, format_) -> None:
    w, numbers = weights_of(format_, 40, 256)
    x = np.random.default_rng(7).integers(-127, 128, (9, 256)).astype(np.float32)
    x[:, ::32] = 127
    wide = np.full((11, 50), 7, np.float32)  # with more rows and columns than the result has
    result = tensor_of(wide[1:])
    result.ne, result.nb = (40, 9, 1, 1), (4, 200, 1800, 1800)
    op = product_of_codes(result, w, x)
    for thread in range(3):
        op(thread, 3)
    np.testing.assert_allclose(wide[1:10, :40], x @ numbers.T, rtol=1e-4, atol=1e-2)
    wide[1:10, :40] = 7
    assert (wide == 7).all()


@pytest.mark.parametrize("columns", [1, 6, 150])
@pytest.mark.few(12)
def test_threads_in_any_order_and_one_by_one_leave_the_same_result(
    product, product_of_codes, format_, columns
) -> None:
    """Each takes the next share of rows. After the last thread, the counters are as before; where any may come, nobody is the last."""
    w, _numbers = weights_of(format_, 968, 512)
    follower, _numbers = weights_of(format_, 8, 256)  # too few rows for a second thread
    x = np.random.default_rng(8).standard_normal((columns, 512)).astype(np.float32)
    right = product(w, x)
    found = np.zeros_like(right)
    result = tensor_of(found)
    op = product_of_codes(result, w, x, follower)
    for order, threads in (
        ([0, 1, 2], 3),
        ([2, 0, 1], 3),
        ([-1] * 3, 1),
        ([0], 1),
        ([-1] * 2, 7),
        (range(40), 40),
    ):
        found[:] = np.nan
        for thread in order:
            op(thread, threads)
        np.testing.assert_array_equal(found, right)
        assert -1 in order or not any(result.op_params[8:16])
        result.op_params[8:16] = [0] * 8


def test_threads_that_run_at_once_leave_the_same_result(product, product_of_codes, format_) -> None:
    w, _numbers = weights_of(format_, 1200, 512)
    x = np.random.default_rng(9).standard_normal((3, 512)).astype(np.float32)
    right = product(w, x)
    found = np.zeros_like(right)
    op = product_of_codes(found, w, x)
    with ThreadPoolExecutor(3) as pool:
        for _ in range(50):
            found[:] = np.nan
            list(pool.map(lambda thread: op(thread, 3), range(3)))
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("columns", [15, 16, 17, 25, 33, 64, 130])
def test_tiles_change_no_result(native_code_with_tiles, columns) -> None:
    plain, tiled = (native_code_with_tiles.untried_formats(tiles=tiles) for tiles in (False, True))
    x = np.random.default_rng(columns).standard_normal((columns, 2304), np.float32)
    x[columns // 2, 40], x[-1, 300] = np.nan, np.inf
    for format_ in FORMATS:
        w, _numbers = weights_of(format_, 72, 2304)
        found, expected = (multiply(native_code_with_tiles, way[format_], w, x) for way in (tiled, plain))
        assert found.tobytes() == expected.tobytes(), format_
