"""Cases of views and of the copies that change a shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from backbay import DType, Op, ops

from ..draw.data import READABLE, Bits, Numbers
from ..draw.draw import Draw
from ..draw.layout import Layout, permuted
from ..draw.operand import Operand
from ..numbers.encoding import encode, stored_shape
from ..numbers.number import Number
from ..numbers.rounding import Array
from ..suite.case import Call, case

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
        shape = (dtype.block_size * min(3, shape[0]), *shape[1:])
    return draw.operand(dtype, shape, Bits(), layout=layout)


def split_shape(draw: Draw, size: int) -> tuple[int, ...]:
    """Another shape with `size` elements."""
    if size == 0:
        return draw.pick((0,), (0, 3), (2, 0, 4))
    shape = []
    for _ in range(draw.below(4)):
        divisors = [d for d in range(1, min(size, 1100) + 1) if size % d == 0]
        shape.append(draw.pick(*divisors))
        size //= shape[-1]
    return (*shape, size)


def whole_blocks(x: Operand, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if shape[0] % x.dtype.block_size == 0 else (x.shape[0], int(np.prod(x.shape[1:])))


@case(ops.reshape)
def reshape(draw: Draw) -> Call:
    x = moved(draw, draw.shape(), blocks=True, layout=False)
    shape = whole_blocks(x, split_shape(draw, int(np.prod(x.shape))))
    return Call((x, shape), lambda raw, shape: raw.reshape(stored_shape(x.dtype, shape)), raw=True)


def turned(draw: Draw) -> Operand:
    """A transposed matrix whose extents are no multiples of a kernel's tile, or an operand with its rows permuted."""
    dtype = any_dtype(draw, blocks=False)
    shape, axes = draw.pick(
        ((33, 63), (1, 0)),
        ((65, 70), (1, 0)),
        ((40, 33, 2), (1, 0, 2)),
        ((8, 3, 5), (0, 2, 1)),
        ((33, 4, 2), (0, 2, 1)),
    )
    layout = Layout(dtype, shape, (permuted(dtype, shape, axes),))
    return replace(draw.operand(dtype, shape, Bits(), layout=False), layout=layout)


@case(ops.contiguous)
def contiguous(draw: Draw) -> Call:
    if draw.flag(4):
        return Call((turned(draw), ()), lambda x, shape: x, raw=True)
    x = moved(draw, draw.shape(), blocks=True)
    if 0 in x.shape or draw.flag():
        return Call((x, ()), lambda x, shape: x, raw=True)
    shape = whole_blocks(x, split_shape(draw, int(np.prod(x.shape))))
    return Call((x, shape), lambda raw, shape: raw.reshape(stored_shape(x.dtype, shape)), raw=True)


@case(ops.duplicate)
def duplicate(draw: Draw) -> Call:
    return Call((moved(draw, draw.shape(), blocks=True),), lambda x: x, raw=True)


@case(ops.permute)
def permute(draw: Draw) -> Call:
    x = moved(draw, draw.shape(), blocks=True)
    axes = list(range(len(x.shape)))
    first = 1 if x.dtype.is_quantized else 0
    for i in range(len(axes) - 1, first, -1):
        j = draw.integer(first, i)
        axes[i], axes[j] = axes[j], axes[i]

    def formula(x: Array, axes: tuple[int, ...]) -> Array:
        rank = x.ndim  # dimension i of the source becomes dimension axes[i]
        return x.transpose([rank - 1 - axes.index(rank - 1 - axis) for axis in range(rank)])

    return Call((x, tuple(axes)), formula, raw=True)


@case(ops.view)
def view(draw: Draw) -> Call:
    """A box inside a contiguous tensor, with the tensor's strides."""
    x = moved(draw, draw.shape(least=1), blocks=True, layout=False)
    unit = (x.dtype.block_size, 1, 1, 1)
    low, shape = [], []
    for n, extent in enumerate(x.shape):
        count = extent // unit[n]
        start = draw.below(count)
        low.append(start * unit[n])
        shape.append((1 + draw.below(count - start)) * unit[n])
    strides = [x.spec.stride(n) for n in range(len(shape))]
    offset = low[0] // unit[0] * strides[0] + sum(a * s for a, s in zip(low[1:], strides[1:], strict=True))
    size = x.dtype.type_size if x.dtype.is_quantized else 1

    def formula(x: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        scale = (size / unit[0], 1, 1, 1) if size > 1 else (1, 1, 1, 1)
        return x[
            tuple(
                slice(int(a * f), int((a + n) * f))
                for a, n, f in reversed(list(zip(low, shape, scale[: len(low)], strict=True)))
            )
        ]

    return Call((x, offset, tuple(shape), tuple(strides[1:])), formula, raw=True)


@case(ops.slice)
def slice_(draw: Draw) -> Call:
    x = moved(draw, draw.shape(), blocks=True)
    dim = draw.below(len(x.shape))
    unit = x.dtype.block_size if dim == 0 else 1
    count = x.shape[dim] // unit
    low = draw.below(count + 1)
    high = low + draw.below(count - low + 1)
    step = draw.pick(1, 2, 3) if unit == 1 else 1
    size = x.dtype.type_size if unit > 1 else 1

    def formula(x: Array, dim: int, low: int, high: int, step: int) -> Array:
        axis = x.ndim - 1 - dim
        return x[(slice(None),) * axis + (slice(low // unit * size, high // unit * size, step),)]

    return Call((x, dim, low * unit, high * unit, step), formula, raw=True)


def pieces(x: Array, dim: int, ends: list[int]) -> list[Array]:
    axis = x.ndim - 1 - dim
    return np.split(x, ends[:-1], axis)


@case(ops.chunk)
def chunk(draw: Draw) -> Call:
    x = draw.operand(draw.pick(*PLAIN), draw.shape(least=1), Bits())
    dim = draw.below(len(x.shape))
    extent = x.shape[dim]
    size = draw.integer(-(-extent // 5), extent)
    ends = [*range(size, extent, size), extent]
    return Call((x, dim, size), lambda x, dim, size: pieces(x, dim, ends), raw=True)


@case(ops.chunk_sections)
def chunk_sections(draw: Draw) -> Call:
    x = draw.operand(draw.pick(*PLAIN), draw.shape(), Bits())
    dim = draw.below(len(x.shape))
    ends = sorted([x.shape[dim], *[draw.below(x.shape[dim] + 1) for _ in range(draw.below(4))]])
    sections = tuple(int(n) for n in np.diff([0, *ends]))
    return Call((x, dim, sections), lambda x, dim, sections: pieces(x, dim, ends), raw=True)


# -- copies ----------------------------------------------------------------------------------------------


def padding_case(op: Op[Any, Any], *, both: bool) -> None:
    def draw_call(draw: Draw) -> Call:
        shape = draw.shape(elements=800)
        x = draw.floats(shape, Numbers("0nisb"))
        amounts = [(draw.below(4) if both else 0, draw.below(4)) for _ in range(draw.integer(1, 4))]
        flat = tuple(n for amount in amounts for n in (amount if both else amount[1:]))

        def formula(x: Number, *given: Any) -> Array:
            rank = max(len(shape), *[n + 1 for n, amount in enumerate(amounts) if any(amount)], 1)
            widths = [*amounts, *[(0, 0)] * 4][:rank][::-1]
            return encode(np.pad(x.value.reshape((1,) * (rank - len(shape)) + x.shape), widths), x_dtype)

        x_dtype = x.dtype
        args = (x, flat) if not both else (x, *(*flat, *[0] * 8)[:8])
        return Call(args, formula)

    case(op)(draw_call)


padding_case(ops.pad, both=False)
padding_case(ops.pad_ext, both=True)


def same_rank(x: Array, rank: int) -> Array:
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


@case(ops.concat)
def concat(draw: Draw) -> Call:
    shape = draw.shape()
    x = moved(draw, shape, blocks=True)
    dim = draw.below(4)
    extent = x.shape[dim] if dim < len(x.shape) else 1
    unit = x.dtype.block_size if dim == 0 else 1
    other = [*x.shape, 1, 1, 1][: max(len(x.shape), dim + 1)]
    other[dim] = draw.pick(extent, unit, 2 * unit, 0)
    t2 = draw.operand(x.dtype, other, Bits())

    def formula(x: Array, t2: Array, dim: int) -> Array:
        rank = max(x.ndim, t2.ndim)
        return np.concatenate([same_rank(x, rank), same_rank(t2, rank)], rank - 1 - dim)

    return Call((x, t2, dim), formula, raw=True)


@case(ops.stack)
def stack(draw: Draw) -> Call:
    x = moved(draw, draw.shape())
    dim = draw.below(len(x.shape))
    others = []
    for _ in range(draw.below(4)):
        shape = list(x.shape)
        shape[dim] = draw.pick(1, x.shape[dim], 3)
        others.append(draw.operand(x.dtype, shape, Bits()))

    def formula(x: Array, dim: int, others: tuple[Array, ...]) -> Array:
        return np.concatenate([x, *others], x.ndim - 1 - dim)

    return Call((x, dim, tuple(others)), formula, raw=True)


@case(ops.repeat)
def repeat(draw: Draw) -> Call:
    x = moved(draw, draw.shape(elements=1000))
    dim, n = draw.below(4), draw.pick(1, 2, 3, 0, 7)

    def formula(x: Array, dim: int, n: int) -> Array:
        x = same_rank(x, dim + 1) if dim >= x.ndim else x
        return np.concatenate([x] * n, x.ndim - 1 - dim) if n else np.take(x, [], x.ndim - 1 - dim)

    return Call((x, dim, n), formula, raw=True)


@case(ops.repeat_4d)
def repeat_4d(draw: Draw) -> Call:
    x = moved(draw, draw.shape(elements=400))
    times = [draw.pick(1, 2, 3) for _ in range(4)]
    dims = tuple(([*x.shape, 1, 1, 1][n]) * times[n] for n in range(4))
    rank = max([len(x.shape), *(n + 1 for n in range(4) if dims[n] != 1)])

    def formula(x: Array, *dims: int) -> Array:
        return np.tile(same_rank(x, rank), times[:rank][::-1])

    return Call((x, *dims), formula, raw=True)
