"""Cases of reading rows by their ids."""

from __future__ import annotations

from functools import partial

import numpy as np

from backbay import DType, ops

from ..draw.data import Bits, Integers
from ..draw.draw import PAST, Draw
from ..numbers.encoding import Array, decode, encode
from ..suite.case import Args, Call, builder, case

TABLES: tuple[tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...]], ...] = (
    # n, rows of the table, ids; the slices of ids and of tables
    ((576, 33, 5), (), ()),
    ((2880, 7, 9), (2,), (1,)),
    ((4096, 5, 3), (), ()),
    ((4097, 3, 5), (), ()),
    ((5120, 2, 3), (1, 3), (1, 3)),
    ((192, 65, 2), (), ()),
    ((96, 300, 33), (), ()),
    ((80, 7, 300), (), ()),
    ((3, PAST, 40), (), ()),
    ((2, 5, PAST), (), ()),
    ((2, 4, 3), (300,), (300,)),
    ((2, 3, 2), (2, 300), (1, 300)),
    ((2, 2, 1), (PAST,), (1,)),
    ((11000, 3, 2), (), ()),
)
"""Rows of models, and more rows, ids and slices than 2^16."""


def rows_call(draw: Draw, dtype: DType) -> Call:
    n = dtype.block_size * draw.pick(1, 2) if dtype.is_quantized else draw.side(257)
    count, k = draw.many(1, 2, 7, 33, 65), draw.side(33)
    outer = draw.pick((), (2,), (3, 2), (1, 3))
    own = tuple(extent if draw.flag() else 1 for extent in outer)
    large = draw.listed(*TABLES) if dtype.block_size <= 32 else None
    if dtype.is_quantized and large is None and draw.flag(8):
        n = dtype.block_size * draw.pick(5, 16, 33)
    if large is not None:
        (n, count, k), outer, own = large
        n = dtype.block_size if dtype.is_quantized else n
    if not dtype.is_quantized and draw.on_turn(5, 29):  # one row, and one id without dimensions
        x = draw.operand(dtype, draw.pick((n, count), (n,)), Bits())
        one = draw.operand(DType.I32, (), Integers(0, x.shape[1] if len(x.shape) > 1 else 1), stays=True)
        return row_call((x, one))
    x = draw.operand(dtype, (n, count, *own), Bits())
    ids = draw.operand(DType.I32, (k, *outer), Integers(0, count), stays=True)
    return row_call((x, ids))


@builder(ops.rows)
def row_call(args: Args) -> Call:
    return Call(args, partial(taken_rows, args[0].dtype), raw=True)


def taken_rows(dtype: DType, raw: Array, ids: Array) -> Array:
    if not ids.ndim:
        return taken_row(raw, int(ids), dtype)
    table = np.broadcast_to(raw, (*ids.shape[:-1], *raw.shape[-2:]))
    return as_read(table[(*np.indices(ids.shape, sparse=True)[:-1], ids)], dtype)


def as_read(rows: Array, dtype: DType) -> Array:
    return rows if dtype is DType.I32 else encode(decode(rows, dtype), DType.F32)


def taken_row(raw: Array, at: int, dtype: DType) -> Array:
    table = raw.reshape(int(np.prod(raw.shape[:-1])), raw.shape[-1])  # rows may be empty
    return as_read(table[at : at + 1], dtype)


@case(ops.rows)
def rows(draw: Draw) -> Call:
    return rows_call(draw, draw.pick(draw.float_dtype(), draw.float_dtype(), draw.float_dtype(), DType.I32))


@case(ops.rows, "quant")
def rows_quantized(draw: Draw) -> Call:
    return rows_call(draw, draw.quantized_dtype())
