"""Cases of writes into leaves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from backbay import DType, ops

from ..draw.data import Bits, Distinct, Integers, Numbers
from ..draw.draw import Draw
from ..draw.operand import Operand
from ..numbers.encoding import decode, encode
from ..numbers.number import Cost, Number, block_error
from ..numbers.rounding import Array
from ..suite.case import Call, case

QUANTIZED = (DType.Q8_0, DType.Q4_0, DType.Q5_0, DType.Q4_1, DType.Q5_1)
"""The quantized types that caches are stored in and that gguf can encode."""


def target_dtype(draw: Draw, source: DType) -> DType:
    """The destination's type: the source's own, or another float type."""
    if source.is_integer:
        return source
    return draw.pick(source, source, DType.F32, DType.F16, DType.BF16)


def converted(raw: Array, source: DType, target: DType) -> Array | Number:
    """Stored elements converted for writing: the same bits, rounded floats, or blocks within one step."""
    if source is target:
        return raw
    numbers = decode(raw, source)
    if not target.is_quantized:
        return encode(numbers, target)
    return Number(numbers, block_error(numbers, target) * 1.01 + 1e-7, Cost(0.0, 0.0))


def placed(whole: Array, index: Any, part: Array | Number, target: DType) -> Array | Number:
    """A destination with the elements at `index` replaced."""
    if isinstance(part, Number):
        numbers = decode(whole, target).copy()
        error = np.zeros(numbers.shape)
        numbers[index], error[index] = part.value, part.error
        return Number(numbers, error, part.cost)
    result = whole.copy()
    result[index] = part
    return result


def source_fill(target: DType) -> Any:
    return Numbers() if target.is_quantized else Bits()


def written_pair(draw: Draw, shape: tuple[int, ...], target: DType | None) -> tuple[Operand, DType]:
    """The source operand, and the destination's type."""
    source = (
        draw.pick(DType.F32, DType.F16)
        if target
        else draw.pick(draw.float_dtype(), draw.float_dtype(), DType.I32)
    )
    target = target or target_dtype(draw, source)
    return draw.operand(source, shape, source_fill(target)), target


def copy_call(draw: Draw, target: DType | None) -> Call:
    shape = draw.shape()
    if target is not None:
        shape = (target.block_size * draw.pick(1, 2, 3), *shape[1:])
    x, kind = written_pair(draw, shape, target)
    other = (int(np.prod(shape)),) if draw.flag(4) and 0 not in shape else shape
    dst = draw.operand(kind, other, Bits(), stays=True)

    def formula(x_raw: Array, dst_raw: Array) -> Array | Number:
        return converted(x_raw.reshape(*other[::-1]), x.dtype, kind)

    return Call((x, dst), formula, raw=True)


@case(ops.copy)
def copy(draw: Draw) -> Call:
    return copy_call(draw, None)


@case(ops.copy, "quant")
def copy_quantized(draw: Draw) -> Call:
    return copy_call(draw, QUANTIZED[draw.turn // 3 % len(QUANTIZED)])


@case(ops.set)
def set_(draw: Draw) -> Call:
    """A box inside a contiguous leaf, with the leaf's strides."""
    whole = draw.shape(least=1)
    low = [draw.below(n) for n in whole]
    shape = tuple(1 + draw.below(n - a) for n, a in zip(whole, low, strict=True))
    source = draw.float_dtype()
    x = draw.operand(target_dtype(draw, source), whole, Bits(), layout=False)
    t2 = draw.operand(source, shape, Bits())
    strides = tuple(x.spec.stride(n) for n in range(len(whole)))
    offset = sum(a * s for a, s in zip(low, strides, strict=True))
    box = tuple(slice(a, a + n) for a, n in zip(low, shape, strict=True))[::-1]

    def formula(x_raw: Array, t2_raw: Array, offset: int, strides: tuple[int, ...]) -> Array | Number:
        return placed(x_raw, box, converted(t2_raw, t2.dtype, x.dtype), x.dtype)

    return Call((x, t2, offset, strides[1:] if draw.flag() else ()), formula, raw=True)


def set_rows_call(draw: Draw, target: DType | None) -> Call:
    n = target.block_size * draw.pick(1, 2) if target else draw.side(129)
    count = draw.many(1, 2, 5, 17, 33, 64)
    k = draw.integer(0, min(count, 9))
    outer = draw.pick((), (2,), (3, 2), (4,), (2, 6))
    src, kind = written_pair(draw, (n, k, *outer), target)
    x = draw.operand(kind, (n, count, *outer), Bits(), stays=True)
    shared = tuple(draw.pick(*[d for d in (1, extent, 2, 3) if extent % d == 0]) for extent in outer)
    repeated = target is None and draw.flag(4)
    fill = Integers(0, count) if repeated else Distinct(count)
    ids = draw.operand(draw.pick(DType.I32, DType.I64), (k, *shared), fill, stays=True)
    if repeated:
        return Call((x, src, ids), verify=partial(one_of_the_rows, kind), chance=True)

    def formula(x_raw: Array, src_raw: Array, ids_raw: Array) -> Array | Number:
        full = modulo(ids_raw, src_raw.shape[:-2])
        index = (*np.indices(full.shape, sparse=True)[:-1], full)
        return placed(x_raw, index, converted(src_raw, src.dtype, kind), kind)

    return Call((x, src, ids), formula, raw=True)


def modulo(ids: Array, outer: tuple[int, ...]) -> Array:
    """The ids of each slice of a destination: slice i uses row i mod n of the n rows of ids."""
    for axis, extent in enumerate(outer):
        ids = np.take(ids, np.arange(extent) % ids.shape[axis], axis)
    return ids


def one_of_the_rows(kind: DType, x: Array, src: Array, ids: Array, got: Array) -> None:
    """Each row named by ids equals one of the rows written to it; each other row is unchanged."""
    (count, n), outer = x.shape[-2:], int(np.prod(x.shape[:-2], dtype=np.int64))
    held, before = decode(got, kind).reshape(outer, count, n), x.reshape(outer, count, n)
    new = src if kind.is_integer else decode(encode(src, kind), kind)
    rows = np.broadcast_to(new, (*x.shape[:-2], *new.shape[-2:])).reshape(outer, *new.shape[-2:])
    named = modulo(ids, x.shape[:-2]).reshape(outer, ids.shape[-1])
    for at, row in np.ndindex(outer, count):
        wanted = rows[at, named[at] == row]
        wanted = wanted if len(wanted) else before[at, row : row + 1]
        same = (held[at, row] == wanted) | (np.isnan(held[at, row]) & np.isnan(wanted))
        assert same.all(-1).any(), f"row {row} of {at} is none of the {len(wanted)} that it may be"


@case(ops.set_rows)
def set_rows(draw: Draw) -> Call:
    return set_rows_call(draw, None)


@case(ops.set_rows, "quant")
def set_rows_quantized(draw: Draw) -> Call:
    return set_rows_call(draw, QUANTIZED[draw.turn // 3 % len(QUANTIZED)])
