"""Cases of views and of the copies that change a shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from backbay import DType, Op, ops

from ..draw.data import READABLE, Bits, Numbers
from ..draw.draw import ALONG, PAST, Draw
from ..draw.layout import Layout, permuted
from ..draw.operand import Operand
from ..numbers.encoding import Array, encode, stored_shape, stored_slice
from ..numbers.number import Number
from ..suite.case import Args, Call, builder, case

PLAIN = (DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64)


def any_dtype(draw: Draw, *, blocks: bool) -> DType:
    """Each float type in turn; now and then integers, or quantized types if `blocks`."""
    kind = draw.below(6)
    if kind == 4:
        return draw.pick(DType.I32, DType.I64)
    return draw.pick(*READABLE[:6]) if kind == 5 and blocks else draw.float_dtype()


def moved(draw: Draw, shape: tuple[int, ...], *, blocks: bool = False, layout: bool = True) -> Operand:
    """An operand of any dtype and any bits; the first extent fills whole blocks."""
    dtype = any_dtype(draw, blocks=blocks)
    if dtype.is_quantized:
        shape = (dtype.block_size * min(3, *shape[:1], 3), *(min(n, 300) for n in shape[1:]))
    return draw.operand(dtype, shape, Bits(), layout=layout)


def split_shape(draw: Draw, size: int) -> tuple[int, ...]:
    if size == 0:
        return draw.pick((0,), (0, 3), (2, 0, 4))
    if size == 1 and draw.flag(3):
        return ()
    shape = []
    for _ in range(draw.below(4)):
        divisors = [d for d in range(1, min(size, 1100) + 1) if size % d == 0]
        shape.append(draw.pick(*divisors))
        size //= shape[-1]
    return (*shape, size)


def whole_blocks(x: Operand, shape: tuple[int, ...]) -> tuple[int, ...]:
    whole = not x.dtype.is_quantized or (shape[:1] and shape[0] % x.dtype.block_size == 0)
    return shape if whole else (x.shape[0], int(np.prod(x.shape[1:])))


def reshaped(draw: Draw, x: Operand) -> Call:
    """x in another shape; now and then with an extent that is inferred."""
    shape = whole_blocks(x, split_shape(draw, int(np.prod(x.shape))))
    given = list(shape)
    if shape and 0 not in shape and draw.flag(3):
        given[draw.below(len(given))] = -1
    return Call((x, tuple(given)), lambda raw, given: raw.reshape(stored_shape(x.dtype, shape)), raw=True)


@case(ops.reshape)
def reshape(draw: Draw) -> Call:
    return reshaped(draw, moved(draw, draw.shape(scalars=True), blocks=True, layout=False))


FOUR = (3, 4, 2, 5)
ORDERS = tuple(permutations(range(4)))[1:]  # all other orders of four dimensions
MATRICES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((33, 63), (1, 0)),
    ((65, 70), (1, 0)),
    ((40, 33, 2), (1, 0, 2)),
    ((8, 3, 5), (0, 2, 1)),
    ((33, 4, 2), (0, 2, 1)),
)
"""Shapes, and the orders of their dimensions."""


def turned(draw: Draw, order: tuple[int, ...] | None) -> Operand:
    """A transposed matrix whose extents are no multiples of a kernel's tile, or an operand with its rows permuted; or
    four dimensions in an order.
    """
    dtype = any_dtype(draw, blocks=False)
    shape, axes = draw.pick(*MATRICES) if order is None else (FOUR, order)
    layout = Layout((permuted(dtype, shape, axes),))
    return replace(draw.operand(dtype, shape, Bits(), layout=False), layout=layout)


@builder(ops.contiguous)
def contiguous_call(args: Args) -> Call:
    kind = args[0].dtype
    return Call(args, lambda x, shape: x.reshape(stored_shape(kind, shape)) if shape else x, raw=True)


@case(ops.contiguous)
def contiguous(draw: Draw) -> Call:
    order = draw.listed(*[None] * len(ALONG), *ORDERS)
    if order is not None or draw.flag(4):
        return contiguous_call((turned(draw, order), ()))
    x = moved(draw, draw.shape(scalars=True), blocks=True)
    if 0 in x.shape or draw.flag():
        return contiguous_call((x, ()))
    call = reshaped(draw, x)
    whole = () in call.args  # without extents the result keeps x's shape
    return contiguous_call((x, ())) if whole else call


@case(ops.duplicate)
def duplicate(draw: Draw) -> Call:
    return Call((moved(draw, draw.shape(scalars=True), blocks=True),), lambda x: x, raw=True)


@case(ops.permute)
def permute(draw: Draw) -> Call:
    x = moved(draw, draw.shape(scalars=True), blocks=True)
    axes = list(range(draw.integer(len(x.shape), 4) if draw.flag(3) else len(x.shape)))
    first = 1 if x.dtype.is_quantized else 0
    for i in range(len(axes) - 1, first, -1):
        j = draw.integer(first, i)
        axes[i], axes[j] = axes[j], axes[i]

    def formula(x: Array, axes: tuple[int, ...]) -> Array:
        own, rank = x.ndim, len(axes)
        x = same_rank(x, rank)  # dimension i of the source becomes dimension axes[i]
        y = x.transpose([rank - 1 - axes.index(rank - 1 - axis) for axis in range(rank)])
        needed = max([own, *[axis + 1 for axis in axes[:own]]])  # further dimensions are left out
        return y.reshape(y.shape[rank - needed :])

    return Call((x, tuple(axes)), formula, raw=True)


@case(ops.view)
def view(draw: Draw) -> Call:
    """A box inside a tensor with the tensor's strides, or rows at any distance, which may overlap or be one."""
    return rows_anywhere(draw) if draw.on_turn(1, 3) else box(draw)


def rows_anywhere(draw: Draw) -> Call:
    """Up to three dimensions with any strides, 0 and less than a row among them."""
    x = draw.operand(any_dtype(draw, blocks=False), draw.shape(least=1), Bits(), layout=False)
    size, unit = int(np.prod(x.shape)), x.dtype.type_size
    shape, steps = [1 + draw.below(min(size, 40))], [1]
    offset = draw.below(size - shape[0] + 1)
    room = size - offset - shape[0]
    for _ in range(1 + draw.below(3)):
        step = draw.pick(shape[0], 0, 1, shape[0] + 1, 2 * shape[0])
        count = 1 + draw.below(min(9, 1 + room // step) if step else 5)
        room -= (count - 1) * step
        shape.append(count)
        steps.append(step)
    places = np.full((1,) * len(shape), offset)
    for axis, (extent, step) in enumerate(zip(reversed(shape), reversed(steps), strict=True)):
        places = places + (step * np.arange(extent)).reshape((-1, *[1] * (len(shape) - 1 - axis)))
    strides = tuple(step * unit for step in steps[1:])
    args = (x, offset * unit, tuple(shape), strides)
    return Call(args, lambda raw, *given: raw.reshape(-1)[places], raw=True, placed=True)


def box(draw: Draw) -> Call:
    """A box inside a contiguous tensor or inside a view, with its strides."""
    x = moved(draw, draw.shape(least=1), blocks=True, layout=False)
    if draw.flag(3):
        x = replace(x, layout=Layout((draw.gaps(x.dtype, x.shape),)))
    unit = (x.dtype.block_size, 1, 1, 1)
    low, shape = [], []
    for n, extent in enumerate(x.shape):
        count = extent // unit[n]
        start = draw.below(count)
        low.append(start * unit[n])
        shape.append((1 + draw.below(count - start)) * unit[n])
    strides = [x.source.stride(n) for n in range(len(shape))]
    offset = low[0] // unit[0] * strides[0] + sum(a * s for a, s in zip(low[1:], strides[1:], strict=True))
    ends = [(n, a, a + extent) for n, (a, extent) in enumerate(zip(low, shape, strict=True))]
    inside = tuple(stored_slice(x.dtype, *each) for each in reversed(ends))

    def formula(x: Array, *given: Any) -> Array:
        return x[inside]

    return Call((x, offset, tuple(shape), tuple(strides[1:])), formula, raw=True, placed=True)


@case(ops.slice)
def slice_(draw: Draw) -> Call:
    x = moved(draw, draw.shape(), blocks=True)
    dim = draw.below(len(x.shape))
    unit = x.dtype.block_size if dim == 0 else 1
    count = x.shape[dim] // unit
    low = draw.below(count + 1)
    high = low + draw.below(count - low + 1)
    step = draw.pick(1, 2, 3, 7, 2000) if unit == 1 else 1

    def formula(raw: Array, dim: int, *ends: int) -> Array:
        return raw[(slice(None),) * (raw.ndim - 1 - dim) + (stored_slice(x.dtype, dim, *ends),)]

    return Call((x, dim, low * unit, high * unit, step), formula, raw=True)


def pieces(x: Array, dim: int, ends: list[int]) -> list[Array]:
    axis = x.ndim - 1 - dim
    return np.split(x, ends[:-1], axis)


@case(ops.chunk)
def chunk(draw: Draw) -> Call:
    x = draw.operand(draw.pick(*PLAIN), draw.shape(), Bits())
    dim = draw.below(len(x.shape))
    if x.shape[dim] == 0:  # no pieces
        dim = next((n for n, extent in enumerate(x.shape) if extent), -1)
    if dim < 0:
        x, dim = draw.operand(x.dtype, (3, 0), Bits()), 0
    extent = x.shape[dim]
    size = draw.integer(-(-extent // (40 if draw.flag(8) else 5)), extent)
    ends = [*range(size, extent, size), extent]
    return Call((x, dim, size), lambda x, dim, size: pieces(x, dim, ends), raw=True)


@case(ops.chunk_sections)
def chunk_sections(draw: Draw) -> Call:
    x = draw.operand(draw.pick(*PLAIN), draw.shape(), Bits())
    dim = draw.below(len(x.shape))
    count = 40 if draw.flag(8) else draw.below(4)
    ends = sorted([x.shape[dim], *[draw.below(x.shape[dim] + 1) for _ in range(count)]])
    sections = tuple(int(n) for n in np.diff([0, *ends]))
    return Call((x, dim, sections), lambda x, dim, sections: pieces(x, dim, ends), raw=True)


# -- copies ----------------------------------------------------------------------------------------------


def padding_case(op: Op[Any, Any], *, both: bool) -> None:
    def draw_call(draw: Draw) -> Call:
        shape = draw.shape(elements=800, scalars=True)
        shape = draw.listed((PAST,), (1, PAST), (3, 300), (1, 1, 300), (1, 1, 1, 300), (4100, 3)) or shape
        x = draw.floats(shape, Numbers("0nisb"))
        amounts = [(draw.below(4) if both else 0, draw.below(4)) for _ in range(draw.integer(1, 4))]
        if draw.flag(6):
            far = draw.pick(33, 70, 300)
            amounts[draw.below(len(amounts))] = (draw.below(far) if both else 0, far)
        if draw.flag(3):  # in one dimension only
            kept = draw.below(4)
            amounts = [(0, 0)] * kept + [(1 + draw.below(3) if both else 0, draw.below(3))]
        flat = tuple(n for amount in amounts for n in (amount if both else amount[1:]))
        return pad_ext_call((x, *(*flat, *[0] * 8)[:8])) if both else pad_call((x, flat))

    case(op)(draw_call)


@builder(ops.pad)
def pad_call(args: Args) -> Call:
    return Call(args, partial(between_zeros, args[0].dtype, [(0, n) for n in args[1]]))


@builder(ops.pad_ext)
def pad_ext_call(args: Args) -> Call:
    amounts = list(zip(args[1::2], args[2::2], strict=True))
    return Call(args, partial(between_zeros, args[0].dtype, amounts))


def between_zeros(dtype: DType, amounts: Sequence[tuple[int, int]], x: Number, *given: Any) -> Array:
    """x with zeros before and after the elements of each dimension."""
    used = max(x.value.ndim, *[n + 1 for n, amount in enumerate(amounts) if any(amount)], 0)
    widths = [*amounts, *[(0, 0)] * 4][:used][::-1]
    whole = same_rank(x.value, used)
    return encode(np.pad(whole, widths) if used else whole, dtype)


padding_case(ops.pad, both=False)
padding_case(ops.pad_ext, both=True)


def same_rank(x: Array, rank: int) -> Array:
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


@case(ops.concat)
def concat(draw: Draw) -> Call:
    states = draw.on_turn(4, 16)  # of a convolution, before a transposed input, of several sequences
    shape = (draw.pick(3, 1, 4), draw.pick(5, 33), draw.pick(2, 3)) if states else draw.shape(scalars=True)
    x = moved(draw, shape, blocks=not states)
    dim = 0 if states or (x.dtype.is_quantized and draw.flag()) else draw.by_turn(0, 1, 2, 3)
    extent = x.shape[dim] if dim < len(x.shape) else 1
    unit = x.dtype.block_size if dim == 0 else 1
    other = [*x.shape, 1, 1, 1, 1][: max(len(x.shape), dim + 1)]
    beyond = draw.on_turn(3, 8)  # dim, beyond both ranks where it can be; two operands of one shape
    other[dim] = extent if beyond else draw.pick(extent, unit, 2 * unit, 0)
    while len(other) > 1 and other[-1] == 1 and (beyond or draw.flag()):
        other.pop()
    t2 = x if draw.on_turn(13, 16) else draw.operand(x.dtype, other, Bits())
    if states:
        steps = (permuted(x.dtype, tuple(other), (1, 0, 2)),)
        t2 = replace(t2, layout=Layout(steps))

    def formula(x: Array, t2: Array, dim: int) -> Array:
        rank = max(x.ndim, t2.ndim, dim + 1)
        return np.concatenate([same_rank(x, rank), same_rank(t2, rank)], rank - 1 - dim)

    return Call((x, t2, dim), formula, raw=True)


@case(ops.stack)
def stack(draw: Draw) -> Call:
    x = moved(draw, draw.shape())
    dim = draw.by_turn(*range(len(x.shape)))
    others = []
    for _ in range(33 if draw.on_turn(11, 30) else draw.below(4)):
        shape = list(x.shape)
        shape[dim] = draw.pick(1, x.shape[dim], 3)
        others.append(draw.operand(x.dtype, shape, Bits()))

    def formula(x: Array, dim: int, others: tuple[Array, ...]) -> Array:
        return np.concatenate([x, *others], x.ndim - 1 - dim)

    return Call((x, dim, tuple(others)), formula, raw=True)


@case(ops.repeat)
def repeat(draw: Draw) -> Call:
    x = moved(draw, draw.shape(elements=1000, scalars=True))
    dim, n = draw.by_turn(0, 1, 2, 3), draw.pick(1, 2, 3, 0, 7)
    n = draw.listed(32, 33, 40, 64, 65, 100, 257, 300) or n

    def formula(x: Array, dim: int, n: int) -> Array:
        x = same_rank(x, dim + 1) if dim >= x.ndim else x
        return np.concatenate([x] * n, x.ndim - 1 - dim) if n else np.take(x, [], x.ndim - 1 - dim)

    return Call((x, dim, n), formula, raw=True)


@case(ops.repeat_4d)
def repeat_4d(draw: Draw) -> Call:
    x = moved(draw, draw.shape(elements=400, scalars=True))
    times = [draw.pick(1, 2, 3) for _ in range(4)]
    times[draw.below(4)] = draw.listed(32, 33, 40, 64, 65, 100, 257, 0) or draw.pick(1, 2, 0)
    dims = tuple(([*x.shape, 1, 1, 1, 1][n]) * times[n] for n in range(4))
    return repeat_4d_call((x, *dims))


@builder(ops.repeat_4d)
def repeat_4d_call(args: Args) -> Call:
    shape, dims = args[0].shape, args[1:]
    rank = max([len(shape), *(n + 1 for n in range(4) if dims[n] != 1)])
    extents = (*shape, 1, 1, 1, 1)
    times = [dims[n] // extents[n] if extents[n] else 1 for n in range(rank)]
    return Call(args, lambda x, *dims: np.tile(same_rank(x, rank), times[::-1]), raw=True)
