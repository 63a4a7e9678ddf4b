"""Arguments in the wrong order, or of the wrong kind, are told apart from wrong sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from backbay import Context, DType, DTypeError, ShapeError

DATA = np.ones((2, 3), np.float32)
NO_NUMBERS = "expected numbers, got the dtype"
NO_EXTENT = "a shape is made of integers, got "
NO_DTYPE = "expected a dtype, which comes first, such as DType.F32, got "


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda ctx: ctx.from_ints(DType.I32, [1, 2, 0]), f"{NO_NUMBERS} i32; data come first"),
        (lambda ctx: ctx.from_floats(DType.F16, [1.0]), f"{NO_NUMBERS} f16; data come first"),
        (lambda ctx: ctx.from_floats(DATA).from_floats(DType.F32), f"{NO_NUMBERS} f32"),
        (
            lambda ctx: ctx.from_floats(ctx.from_floats(DATA)),
            r"got the tensor f32\[3,2\]; read it with numpy",
        ),
        (lambda ctx: ctx.from_bytes(b"abcd" * 100, DType.F32, 100), f"{NO_DTYPE}bytes$"),
        (lambda ctx: ctx.empty(3, 4), f"{NO_DTYPE}3$"),
        (lambda ctx: ctx.empty("f32", 4), f"{NO_DTYPE}'f32'$"),
        (lambda ctx: ctx.zeros((2, 3)), f"{NO_DTYPE}tuple$"),
        (lambda ctx: ctx.empty(np.float32, 4), f"{NO_DTYPE}<class 'numpy.float32'>$"),
        (lambda ctx: ctx.empty(DType.I8, 4), "expected a dtype that tensors may hold"),
        (lambda ctx: ctx.arange(DType.F32, 0, 3), "arange: start, stop and step are numbers"),
        (lambda ctx: ctx.arange(0, 3, DType.I32), "arange: start, stop and step are numbers"),
    ],
)
def test_a_dtype_where_data_belong_or_none_where_it_belongs(
    ctx: Context, make: Callable[[Context], object], message: str
) -> None:
    with pytest.raises(DTypeError, match=message):
        make(ctx)


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda ctx: ctx.from_floats(DATA, DType.F16), "<DType.F16: 1>; the dtype comes first"),
        (lambda ctx: ctx.from_floats(DATA, 3, 2, DType.F16), "<DType.F16: 1>; the dtype comes first"),
        (lambda ctx: ctx.from_floats((3, 2), DATA), "ndarray$"),
        (lambda ctx: ctx.from_ints([3, 2], [1.0, 2.0]), "1.0$"),
        (lambda ctx: ctx.from_bytes(DType.F32, 1, b"abcd"), "bytes$"),
        (lambda ctx: ctx.empty(DType.F32, "3"), "'3'$"),
        (lambda ctx: ctx.zeros(DType.F32, np.array([2, 3])), "ndarray$"),
    ],
)
def test_what_is_no_extent_is_named(ctx: Context, make: Callable[[Context], object], given: str) -> None:
    with pytest.raises(ShapeError, match=NO_EXTENT + given):
        make(ctx)


def test_extents_may_be_integers_of_numpy_or_one_sequence(ctx: Context) -> None:
    assert ctx.zeros(DType.F32, np.int64(3), 2).shape == (3, 2)
    assert ctx.zeros(DType.F32, [3, np.int32(2)]).shape == (3, 2)
