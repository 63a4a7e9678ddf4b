"""Conversions between all dtypes, made of the few that ggml has."""

from __future__ import annotations

from backbay import DType, UnsupportedOpError

from ..library.abi import Ptr, dtype_of
from .tensor_builder import TensorBuilder

WORD = 2.0**32  # the weight of the high half of an i64
DIRECT = {
    (DType.F32, DType.F16), (DType.F32, DType.BF16), (DType.F16, DType.F32), (DType.F16, DType.BF16),
    (DType.BF16, DType.F32), (DType.BF16, DType.F16), (DType.F32, DType.I32), (DType.I32, DType.F32),
}  # fmt: skip


def cast(g: TensorBuilder, x: Ptr, dtype: DType) -> Ptr:
    """A tensor as another dtype, contiguous if it is converted; the tensor itself if it has that dtype."""
    source = dtype_of(x)
    if source is dtype:
        return x
    if (source, dtype) in DIRECT:
        return g.call("cast", x, int(dtype))
    if source.is_quantized and dtype is DType.F32:
        return g.call("cast", g.with_rows(x), int(dtype))
    if source.is_float and dtype.is_quantized:
        if not g.library.can_quantize(dtype):
            raise UnsupportedOpError(f"this ggml cannot quantize to {dtype}")
        return g.call("cast", g.contiguous(x), int(dtype))
    if source is DType.I64:
        return _from_int64(g, x, dtype)
    if dtype is DType.I64:
        return _int32_to_int64(g, x) if source is DType.I32 else _float_to_int64(g, cast(g, x, DType.F32))
    return cast(g, cast(g, x, DType.F32), dtype)


def _from_int64(g: TensorBuilder, x: Ptr, dtype: DType) -> Ptr:
    x = g.contiguous(x)
    low, high = (g.call("cont", _half(g, x, n)) for n in (0, 1))
    if dtype is DType.I32:
        return low  # numbers that do not fit may give anything
    # Read as a signed number, a low half with its top bit set is 2^32 too small: the high half makes up for it.
    lows, highs = (cast(g, half, DType.F32) for half in (low, high))
    carried = g.call("add", highs, g.call("step", g.call("neg", lows)))
    return cast(g, g.call("add", g.call("scale", carried, WORD), lows), dtype)


def _half(g: TensorBuilder, x: Ptr, n: int) -> Ptr:
    """The low (0) or high (1) 32 bits of contiguous i64."""
    return g.view(x, DType.I32, tuple(x.ne), tuple(x.nb), x.view_offs + 4 * n)


def _int32_to_int64(g: TensorBuilder, x: Ptr) -> Ptr:
    negative = g.call("step", g.call("neg", cast(g, x, DType.F32)))
    return _joined(g, g.contiguous(x), cast(g, g.call("neg", negative), DType.I32))


def _float_to_int64(g: TensorBuilder, x: Ptr) -> Ptr:
    whole = g.call("trunc", g.contiguous(x))
    high = g.call("trunc", g.call("scale", whole, 1 / WORD))
    low = g.call("sub", whole, g.call("scale", high, WORD))  # exact, below 2^32, of the number's sign
    # A low half beyond the range of i32 is shifted by 2^32; a negative one borrows from the high half.
    negative = g.call("neg", low)
    above = g.call("step", g.call("add", low, g.full(DType.F32, (1, 1, 1, 1), 128 - 2.0**31)))
    below = g.call("step", g.call("add", negative, g.full(DType.F32, (1, 1, 1, 1), -(2.0**31))))
    signed = g.call("sub", low, g.call("scale", g.call("sub", above, below), WORD))
    carried = g.call("sub", high, g.call("step", negative))
    return _joined(g, cast(g, signed, DType.I32), cast(g, carried, DType.I32))


def _joined(g: TensorBuilder, low: Ptr, high: Ptr) -> Ptr:
    """i64 of its low and high halves, both contiguous i32."""
    ne = tuple(low.ne)
    count = ne[0] * ne[1] * ne[2] * ne[3]
    pairs = g.call("concat", g.reshape(low, 1, count), g.reshape(high, 1, count), 0)
    return g.bitcast(pairs, DType.I64, ne)
