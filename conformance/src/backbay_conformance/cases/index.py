"""Cases of reading rows by their ids."""

from __future__ import annotations

import numpy as np

from backbay import DType, ops

from ..draw.data import Bits, Integers
from ..draw.draw import Draw
from ..numbers.encoding import decode, encode
from ..numbers.rounding import Array
from ..suite.case import Call, case


def rows_call(draw: Draw, dtype: DType) -> Call:
    n = dtype.block_size * draw.pick(1, 2) if dtype.is_quantized else draw.side(257)
    count, k = draw.many(1, 2, 7, 33, 65), draw.side(33)
    outer = draw.pick((), (2,), (3, 2), (1, 3))
    own = tuple(extent if draw.flag() else 1 for extent in outer)
    x = draw.operand(dtype, (n, count, *own), Bits())
    ids = draw.operand(DType.I32, (k, *outer), Integers(0, count), stays=True)

    def formula(raw: Array, ids: Array) -> Array:
        table = np.broadcast_to(raw, (*ids.shape[:-1], *raw.shape[-2:]))
        index = (*np.indices(ids.shape, sparse=True)[:-1], ids)
        taken = table[index]
        return taken if dtype is DType.I32 else encode(decode(taken, dtype), DType.F32)

    return Call((x, ids), formula, raw=True)


@case(ops.rows)
def rows(draw: Draw) -> Call:
    return rows_call(draw, draw.pick(draw.float_dtype(), draw.float_dtype(), draw.float_dtype(), DType.I32))


@case(ops.rows, "quant")
def rows_quantized(draw: Draw) -> Call:
    return rows_call(draw, draw.quantized_dtype())
