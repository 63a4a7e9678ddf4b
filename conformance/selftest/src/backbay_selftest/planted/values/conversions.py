"""Conversions between integers and floats, in casts and in writes."""

from __future__ import annotations

import numpy as np

from backbay import DType, ops

from ...faults import BoundCall, Kind, Result, fault


def low_words(x: np.ndarray) -> np.ndarray:
    """The signed low halves of 64-bit integers."""
    return x.astype(np.int64).astype(np.int32).astype(np.int64)


@fault(Kind.OVERFLOW, "store")
def a_float_becomes_an_i64_by_way_of_i32(call: BoundCall) -> Result:
    """Casts to i64 keep the low half, with its sign."""
    call.right()
    if call.node.op is ops.cast and call.node.dtype is DType.I64 and call.node.args[0].dtype.is_float:
        call.out[...] = low_words(call.out)


@fault(Kind.OVERFLOW, "store")
def the_low_half_of_an_i64_is_signed(call: BoundCall) -> Result:
    """A cast to i64 writes two halves; a low half from 2^31 on does not borrow from the high half."""
    call.right()
    if call.node.op is ops.cast and call.node.dtype is DType.I64 and call.node.args[0].dtype is DType.F32:
        out = call.out.astype(np.int64)
        call.out[...] = np.where(out & (1 << 31), out - (1 << 32), out)


@fault(Kind.PRECISION, "read_operand")
def integers_are_cast_through_f32(call: BoundCall) -> Result:
    """i32 and i64 meet in single precision, also from one to the other."""
    y = call.right()
    if call.reader.op is ops.cast and call.operand.dtype.is_integer and call.reader.dtype.is_integer:
        limit = 2.0**31 if call.reader.dtype is DType.I32 else 2.0**63
        through = np.asarray(y).astype(np.float32).astype(np.float64)
        return np.clip(through, -limit, limit - 1024 * (limit / 2**31)).astype(np.int64)
    return y


def cast_by(call: BoundCall, whole: np.ufunc) -> None:
    """Casts of floats to integers by a function of the numbers that surely fit."""
    call.right()
    if call.node.op is ops.cast and call.node.dtype.is_integer and call.node.args[0].dtype.is_float:
        x = np.asarray(call.result, np.float64).reshape(call.out.shape)
        sane = np.abs(x) < 2.0**30
        call.out[sane] = whole(x[sane])


@fault(Kind.SPECIAL, "store")
def a_float_is_rounded_to_an_integer(call: BoundCall) -> Result:
    """Casts round to the nearest integer instead of dropping the fraction."""
    cast_by(call, np.rint)


@fault(Kind.SPECIAL, "store")
def a_float_is_rounded_down_to_an_integer(call: BoundCall) -> Result:
    """Fractions below zero are dropped downwards."""
    cast_by(call, np.floor)


@fault(Kind.SPECIAL, "store")
def a_nan_among_integers_spoils_its_neighbour(call: BoundCall) -> Result:
    """Pairs are packed into one word; the bits of a NaN reach the other half."""
    call.right()
    if call.node.op is ops.cast and call.node.dtype.is_integer and call.node.args[0].dtype.is_float:
        flat = np.array(call.out).reshape(-1)
        hit = np.flatnonzero(np.isnan(np.asarray(call.result, np.float64)).reshape(-1)[:-1]) + 1
        flat[hit] = -1
        call.out[...] = flat.reshape(call.out.shape)


@fault(Kind.CLAIMS, "data_to_write")
def writes_of_integers_into_floats_move_their_bits(call: BoundCall) -> Result:
    """copy, set and set_rows convert between floats only; an i32 lands in an f32 as it is."""
    if call.source.dtype is DType.I32 and call.target.dtype is DType.F32:
        raw = call.raw.view(np.float32)
        return raw.reshape(call.target.shape[::-1]) if call.whole else raw
    return call.right()


@fault(Kind.OVERFLOW, "data_to_write")
def writes_into_i64_clear_the_high_half(call: BoundCall) -> Result:
    """Numbers written into an i64 are unsigned words, so that -1 becomes 2^32 - 1."""
    y = call.right()
    return y & 0xFFFFFFFF if call.target.dtype is DType.I64 and call.source.dtype is not DType.I64 else y


@fault(Kind.CLAIMS, "data_to_write")
def floats_are_written_into_i32_as_f16_would_hold_them(call: BoundCall) -> Result:
    y = call.right()
    if call.target.dtype is not DType.I32 or not call.source.dtype.is_float:
        return y
    small = np.abs(y.astype(np.int64)) < 60000
    return np.where(small, np.where(small, y, 0).astype(np.float16).astype(np.int32), y)


@fault(Kind.OVERFLOW, ops.fill)
def the_least_i64_is_filled_as_the_largest(call: BoundCall) -> Result:
    """The magnitude of -2^63 does not fit, and saturates."""
    return call.right(value=2.0**62) if call.value == -(2.0**63) else call.right()


@fault(Kind.SPECIAL, ops.fill)
def fill_with_minus_zero_clears(call: BoundCall) -> Result:
    """A value equal to 0 is a memset."""
    return call.right(value=0.0 if call.value == 0 else call.value)


@fault(Kind.SPECIAL, ops.fill)
def fill_with_nan_is_a_zero(call: BoundCall) -> Result:
    """The value is clamped to the range of the type, with comparisons that NaN fails."""
    return call.right(value=0.0 if np.isnan(call.value) else call.value)


@fault(Kind.SPECIAL, ops.fill)
def fill_with_minus_infinity_is_the_lowest_number(call: BoundCall) -> Result:
    return call.right(value=-65504.0 if call.value == -np.inf else call.value)


@fault(Kind.OVERFLOW, ops.set_rows)
def rows_of_8_bytes_are_written_as_4(call: BoundCall) -> Result:
    """Elements of i64 are moved as words, with the row length of i32: the second half of a row stays."""
    if call.x.dtype != np.int64 or call.x.shape[-1] < 2:
        return call.right()
    before, y = np.array(call.x), call.right()
    half = y.shape[-1] // 2
    y[..., half:] = before[..., half:]
    return y
