"""Cases of writes into leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from backbay import DType, ops

from ..draw.data import QUIET, Bits, ComputedNumbers, DistinctIds, Fill, FillContext, Integers, Numbers
from ..draw.draw import PAST, Draw
from ..draw.layout import Layout
from ..draw.operand import Operand
from ..numbers.comparison import same
from ..numbers.encoding import LARGEST, NUMPY, Array, decode, encode, significand
from ..numbers.number import Cost, Number, block_error
from ..suite.case import Args, Call, builder, case
from .order import shown

QUANTIZED = (DType.Q8_0, DType.Q4_0, DType.Q5_0, DType.Q4_1, DType.Q5_1)
"""The quantized types that caches are stored in and that gguf can encode."""


def target_dtype(draw: Draw, source: DType) -> DType:
    """The destination's type: the source's own, another float type, or by turn any plain type."""
    if draw.on_turn(2, 5):
        return draw.by_turn(DType.I64, DType.F32, DType.I32, DType.F16, DType.BF16, each=5)
    if source.is_integer:
        return source
    return draw.pick(source, DType.F32, DType.F16, DType.BF16)


def converted(raw: Array, source: DType, target: DType) -> Array | Number:
    """Stored elements as cast converts them: the same bits, rounded floats, whole numbers, or blocks within one step."""
    if source is target:
        return raw
    numbers = decode(raw, source)
    if not target.is_quantized:
        with np.errstate(invalid="ignore"):  # a NaN may become any integer
            return encode(numbers, target)
    return Number(numbers, block_error(numbers, target) * 1.01 + 1e-7, Cost(0.0, 0.0))


LIMITS = {DType.I32: 31, DType.I64: 63}  # the powers of two at which integers end


def convertible(source: DType, target: DType) -> Fill:
    """Data whose conversion is defined, and in special mode some whose conversion to an integer is not."""
    if source is target:
        return Bits()
    if source.is_float and target.is_float:
        return partial(halfway_floats, target)
    return ComputedNumbers(partial(fractions, LIMITS[target])) if source.is_float else partial(whole, target)


RANGES = {DType.F32: (-149, -126, 128), DType.F16: (-24, -14, 16), DType.BF16: (-133, -126, 128)}
"""Of each float type: the exponents of its least number, of its least normal number, and of its first infinity."""


def halfway_floats(target: DType, making: FillContext, operand: Operand) -> Array:
    """Any floats, some of them between two of the target or its largest and infinity: just halfway, or beside."""
    raw, rng = Bits()(making, operand), making.rng
    if significand(operand.dtype) <= significand(target) or not raw.size:
        return raw
    broken = np.flatnonzero(rng.random(raw.size) < 0.03)
    raw.view(f"u{raw.itemsize}")[broken] = rng.choice(nan_to_break(operand.dtype), broken.size)
    chosen = np.flatnonzero(rng.random(raw.size) < 0.2)
    least, normal, end = RANGES[target]
    low, high = max(least, RANGES[operand.dtype][1]), min(end, RANGES[operand.dtype][2])
    exponents = rng.integers(low - 1, high, chosen.size)
    exponents = np.where(rng.random(chosen.size) < 0.1, high - 1, exponents)
    steps = 2.0 ** (np.maximum(exponents, normal) - significand(target) + 1)
    below = np.floor(2.0**exponents * (1 + rng.random(chosen.size)) / steps) * steps
    if LARGEST[target] < LARGEST[operand.dtype]:
        last = rng.random(chosen.size) < 0.1
        below = np.where(last, LARGEST[target], below)
        steps = np.where(last, 2.0 ** (end - significand(target)), steps)
    between = (below + steps / 2) * rng.choice([-1, 1], chosen.size)
    bits = encode(between, operand.dtype).view(f"u{raw.itemsize}")
    raw.view(bits.dtype)[chosen] = bits + rng.integers(-1, 2, chosen.size).astype(bits.dtype)
    return raw


def nan_to_break(source: DType) -> list[int]:
    """The bits of NaN that a conversion may break: rounding as a number gives 0, dropping the low bits an infinity."""
    ones = (1 << 8 * source.type_size) - 1
    quiet = QUIET[source]
    low = quiet & quiet << 1 | 1  # an infinity, and the last bit of a payload
    sign = ones ^ ones >> 1
    return [ones, ones >> 1, low, low | sign]


def fractions(bits: int, making: FillContext, operand: Operand) -> Array:
    """Numbers with fractions, up to the ends of an integer type of so many bits and a sign."""
    rng, size = making.rng, int(np.prod(operand.shape, dtype=np.int64))
    most = min(bits, 16 if operand.dtype is DType.F16 else bits) * (1 - 2.0**-8)
    numbers = np.where(rng.random(size) < 0.5, -1, 1) * 2.0 ** rng.uniform(-3, most, size)
    numbers[rng.random(size) < 0.1] = 0
    if making.mode == "special" and size:
        numbers[rng.integers(0, size, 1 + size // 9)] = rng.choice([np.nan, np.inf, -np.inf, 2.0**bits])
    return numbers


def no_integer(x: Array, *rest: Any) -> Array:
    """Marks the floats that may become any integer: those that are none, and those too large for the type."""
    target = next(part for part in reversed(rest) if isinstance(part, DType))
    return ~(np.abs(x) < 2.0 ** LIMITS[target])


def whole(target: DType, making: FillContext, operand: Operand) -> Array:
    """Integers that the target holds or rounds to nearest, past 2^24 and up to the ends of both types."""
    rng, size = making.rng, int(np.prod(operand.shape, dtype=np.int64))
    own = LIMITS[operand.dtype]
    most = min(own, LIMITS[target]) if target.is_integer else 31 if target is DType.F32 else 24
    limit = (1 << most) - 1
    numbers = rng.integers(-limit, limit, size, dtype=np.int64, endpoint=True)
    numbers >>= rng.integers(0, most, size)
    if own == 63 and target is DType.F32:  # whole multiples, which are not rounded
        large = rng.integers(-(1 << 23), 1 << 23, size) << rng.integers(20, 40, size)
        numbers = np.where(rng.random(size) < 0.2, large, numbers)
    return numbers.astype(NUMPY[operand.dtype])


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


def with_empty_blocks(target: DType, making: FillContext, operand: Operand) -> Array:
    """Numbers, with zeros alone in some blocks: their scale is 0, by which nothing can be divided."""
    raw = Numbers()(making, operand)
    blocks = raw.reshape(-1, target.block_size)
    blocks[making.rng.random(len(blocks)) < 0.1] = 0
    return blocks.reshape(raw.shape)


def written_pair(draw: Draw, shape: tuple[int, ...], target: DType | None) -> tuple[Operand, DType]:
    if target:
        source = draw.pick(DType.F32, DType.F16)
        return draw.operand(source, shape, partial(with_empty_blocks, target)), target
    source = draw.pick(draw.float_dtype(), draw.float_dtype(), DType.F32, DType.I32, DType.I64)
    target = target_dtype(draw, source)
    return draw.operand(source, shape, convertible(source, target)), target


def open_elements(source: DType, target: DType, free: Callable[..., Array]) -> dict[str, Any]:
    """The rule for floats that may become any integer, which `free` marks in the destination."""
    return {"free": free, "instead": None} if source.is_float and target.is_integer else {}


def copy_call(draw: Draw, target: DType | None) -> Call:
    shape = draw.shape(scalars=target is None)
    if target is not None:
        shape = (target.block_size * draw.pick(1, 2, 3), *(min(n, 4100) for n in shape[1:]))
    x, kind = written_pair(draw, shape, target)
    other = regrouped(draw, shape, target is None) if draw.flag(3) and 0 not in shape else shape
    return copied_call((x, draw.operand(kind, other, Bits(), stays=True)))


def regrouped(draw: Draw, shape: tuple[int, ...], plain: bool) -> tuple[int, ...]:
    """Another shape of as many elements; the rows of blocks stay whole unless the shape is flat."""
    size = int(np.prod(shape))
    first = draw.pick(*[n for n in range(2, 13) if size % n == 0] or [1]) if plain else shape[0]
    second = draw.pick(*[n for n in (1, 2, 3, 4, 5) if size // first % n == 0])
    return draw.pick((size,), (first, size // first), (first, second, size // first // second))


@builder(ops.copy)
def copied_call(args: Args) -> Call:
    source, target = args[0].dtype, args[1].dtype

    def formula(x_raw: Array, dst_raw: Array) -> Array | Number:
        if source is target:
            return x_raw.reshape(dst_raw.shape)
        return converted(x_raw.reshape(args[1].shape[::-1]), source, target)

    def free(x: Array, dst: Array) -> Array:
        return no_integer(x.reshape(dst.shape), target)

    return Call(args, formula, raw=True, **open_elements(source, target, free))


@case(ops.copy)
def copy(draw: Draw) -> Call:
    return copy_call(draw, None)


@case(ops.copy, "quant")
def copy_quantized(draw: Draw) -> Call:
    return copy_call(draw, draw.by_turn(*QUANTIZED, each=3))


@case(ops.set)
def set_(draw: Draw) -> Call:
    """A box inside a leaf or a view of one, with its strides; or rows with strides of their own."""
    source = draw.pick(draw.float_dtype(), draw.float_dtype(), DType.I32)
    kind = target_dtype(draw, source)
    if draw.on_turn(3, 4):
        return rows_apart(draw, source, kind)
    whole = draw.shape(least=1)
    low = [draw.below(n) for n in whole]
    shape = tuple(1 + draw.below(n - a) for n, a in zip(whole, low, strict=True))
    x = draw.operand(kind, whole, Bits(), layout=False)
    if draw.flag(3):
        x = replace(x, layout=Layout((draw.gaps(kind, whole),)))
    t2 = draw.operand(source, shape, convertible(source, kind))
    strides = tuple(x.source.stride(n) for n in range(len(whole)))
    offset = sum(a * s for a, s in zip(low, strides, strict=True))
    return set_call((x, t2, offset, strides[1:] if draw.flag() else ()))


def rows_apart(draw: Draw, source: DType, kind: DType) -> Call:
    """Rows at any distance, longer or shorter than the destination's rows."""
    x = draw.operand(kind, draw.shape(least=1), Bits(), layout=False)
    size, unit = int(np.prod(x.shape)), kind.type_size
    row = 1 + draw.below(min(size, 40))
    offset = draw.below(size - row + 1)
    apart = row + draw.below(4)
    count = 1 + draw.below(min(1 + (size - offset - row) // apart, 9))
    t2 = draw.operand(source, (row, count), convertible(source, kind))
    return set_call((x, t2, offset * unit, (apart * unit,)))


@builder(ops.set)
def set_call(args: Args) -> Call:
    x, part, offset, strides = args
    size, unit, kind = math.prod(x.shape), x.dtype.type_size, x.dtype
    numbers = x.layout.embed(np.arange(size).reshape(x.shape[::-1])).reshape(-1)  # for each place of the leaf
    inside = np.flatnonzero((numbers >= 0) & (numbers < size))
    places = np.empty(size, np.int64)  # for each element
    places[numbers[inside]] = inside
    corner = places.reshape(x.shape[::-1])[tuple(slice(2) for _ in x.shape)]
    apart = [int(np.diff(corner, axis=corner.ndim - 1 - n).ravel()[:1].sum()) for n in range(corner.ndim)]
    steps = (apart[0] or 1, *([step // unit for step in strides] or apart[1:]))
    written = places[0] + offset // unit
    for n, extent in enumerate(part.shape):
        written = written + steps[n] * np.arange(extent).reshape(-1, *[1] * n)

    def formula(x_raw: Array, part_raw: Array, offset: int, strides: Any) -> Array | Number:
        flat = placed(x_raw.reshape(-1), numbers[written], converted(part_raw, part.dtype, kind), kind)
        return flat.reshape(*x_raw.shape)

    def free(x_raw: Array, part_raw: Array, *rest: Any) -> Array:
        marks = np.zeros(size, bool)
        marks[numbers[written]] = no_integer(part_raw, kind)
        return marks.reshape(x_raw.shape)

    return Call(args, formula, raw=True, placed=True, **open_elements(part.dtype, kind, free))


WRITTEN: tuple[tuple[tuple[int, int, int], tuple[int, ...]], ...] = (
    # n, rows of the destination, rows written; slices
    ((576, 33, 5), ()),
    ((4097, 9, 3), ()),
    ((128, 4100, 300), ()),
    ((1, 1200, 1030), ()),
    ((1, 300, 300), (2,)),
    ((3, PAST, 40), ()),
    ((2, PAST, 40000), ()),
    ((2, 5, 2), (300,)),
    ((3, 2, 1), (2, 300)),
    ((2, 3, 1), (9000,)),
)
"""Rows of models, and more rows, ids and slices than fit in 16 bits."""


def set_rows_call(draw: Draw, target: DType | None) -> Call:
    n = target.block_size * draw.pick(1, 2) if target else draw.side(129)
    count = draw.many(1, 2, 5, 17, 33, 64)
    k = draw.integer(0, min(count, 9))
    outer = draw.pick((), (2,), (3, 2), (4,), (2, 6), (4, 6))
    large = draw.listed(*WRITTEN)
    if large is not None:
        (n, count, k), outer = large
        if target:  # whose conversion is slow
            n, count, k = target.block_size, min(count, 9000), min(k, 999)
            outer = tuple(min(m, 99) for m in outer)
    elif target and draw.flag(8):
        n, outer = target.block_size * draw.pick(5, 33, 128), ()
    src, kind = written_pair(draw, (n, k, *outer), target)
    repeated = target is None and large is None and draw.on_turn(1, 4)
    if repeated:  # in any order, and mostly a few rows again and again
        outer = draw.by_turn((), outer, each=20)
        kind = draw.by_turn(DType.F32, DType.F16, DType.F32, DType.BF16, DType.I32, each=4)
        src = draw.operand(kind, (n, max(k, 2), *outer), Bits())
    x = draw.operand(kind, (n, count, *outer), Bits(), stays=True)
    shared = tuple(draw.pick(*[d for d in (1, extent, 2, 3) if extent % d == 0]) for extent in outer)
    fill = Integers(0, min(count, draw.pick(3, count))) if repeated else DistinctIds(count)
    ids = draw.operand(draw.pick(DType.I32, DType.I64), (src.shape[1], *shared), fill, stays=True)
    return repeated_rows((x, src, ids)) if repeated else distinct_rows((x, src, ids))


@builder(ops.set_rows)
def rows_call(args: Args) -> Call:
    """The call with ids that are known: whether one comes twice in a row of ids."""
    ids = args[2]
    ordered = np.sort(ids.stored, axis=-1) if ids.raw is not None else np.zeros(0)
    return repeated_rows(args) if (ordered[..., 1:] == ordered[..., :-1]).any() else distinct_rows(args)


def repeated_rows(args: Args) -> Call:
    return Call(args, verify=partial(one_of_the_rows, args[0].dtype), chance=True)


def distinct_rows(args: Args) -> Call:
    kind, source = args[0].dtype, args[1].dtype

    def index(src: Array, ids: Array) -> tuple[Array, ...]:
        full = modulo(ids, src.shape[:-2])
        return (*np.indices(full.shape, sparse=True)[:-1], full)

    def formula(x_raw: Array, src_raw: Array, ids: Array) -> Array | Number:
        return placed(x_raw, index(src_raw, ids), converted(src_raw, source, kind), kind)

    def free(x: Array, src: Array, ids: Array) -> Array:
        marks = np.zeros(x.shape, bool)
        marks[index(src, ids)] = no_integer(src, kind)
        return marks

    return Call(args, formula, raw=True, **open_elements(source, kind, free))


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
        right = same(held[at, row], wanted)
        if not right.all(-1).any():
            place = int(np.argmin(right[0]))
            written = ", ".join(str(k) for k in np.flatnonzero(named[at] == row)[:4])
            told = f"from row {written} of the source" if written else "unchanged"
            where = f"row {row}" + (f" of slice {at}" if outer > 1 else "")
            raise AssertionError(
                f"{where} must be {told}: expected {shown(wanted[0], place)}, got {shown(held[at, row], place)}"
            )


@case(ops.set_rows)
def set_rows(draw: Draw) -> Call:
    return set_rows_call(draw, None)


@case(ops.set_rows, "quant")
def set_rows_quantized(draw: Draw) -> Call:
    return set_rows_call(draw, draw.by_turn(*QUANTIZED, each=3))
