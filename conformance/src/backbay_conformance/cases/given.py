"""Calls of given operands, for the ops whose formula depends on more of a call than its decoded arguments.

For all other ops, the formula of a drawn call serves for any operands.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from backbay import CacheConfig, DType, ops

from ..draw.operand import Operand
from ..numbers.encoding import decode, encode, stored_shape
from ..numbers.number import Number
from ..numbers.rounding import Array
from ..suite.case import Call, given
from .attention import attention_formula, empty_rows
from .index import taken_rows
from .linear import diagonal, solved, triangle
from .shape import same_rank
from .spatial import _both, rank, windows
from .write import converted, modulo, no_integer, one_of_the_rows, open_elements, placed

Args = tuple[Any, ...]

# -- elementwise -----------------------------------------------------------------------------------------


@given(ops.neg)
def neg(args: Args, cache: CacheConfig) -> Call:
    kind = args[0].dtype
    return Call(args, lambda raw: np.asarray(raw ^ 0x8000 if kind is DType.BF16 else -raw), raw=True)


@given(ops.clamp)
def clamp(args: Args, cache: CacheConfig) -> Call:
    return Call(
        args,
        lambda x, low, high: x.clip(low, high),
        free=lambda x, low, high: np.isnan(x),
        instead=(np.nan, *args[1:]),
    )


@given(ops.fill)
def fill(args: Args, cache: CacheConfig) -> Call:
    kind = args[0].dtype
    return Call(args, lambda x, value: encode(np.full(x.shape, value), kind), raw=True)


@given(ops.cast)
def cast(args: Args, cache: CacheConfig) -> Call:
    source: DType = args[0].dtype

    def formula(raw: Array, target: DType) -> Array | Number:
        if target.is_integer:
            return decode(raw, source).astype(np.int32 if target is DType.I32 else np.int64)
        return converted(raw, source, target)

    return Call(args, formula, raw=True)


# -- shapes ----------------------------------------------------------------------------------------------


@given(ops.contiguous)
def contiguous(args: Args, cache: CacheConfig) -> Call:
    kind = args[0].dtype
    return Call(args, lambda x, shape: x.reshape(stored_shape(kind, shape)) if shape else x, raw=True)


def _pad(args: Args, amounts: list[tuple[int, int]]) -> Call:
    x: Operand = args[0]
    used = max(len(x.shape), *[n + 1 for n, amount in enumerate(amounts) if any(amount)], 1)
    widths = [*amounts, *[(0, 0)] * 4][:used][::-1]

    def formula(x_value: Number, *amounts: Any) -> Array:
        return encode(np.pad(same_rank(x_value.value, used), widths), x.dtype)

    return Call(args, formula)


@given(ops.pad)
def pad(args: Args, cache: CacheConfig) -> Call:
    return _pad(args, [(0, n) for n in args[1]])


@given(ops.pad_ext)
def pad_ext(args: Args, cache: CacheConfig) -> Call:
    flat = args[1:]
    return _pad(args, list(zip(flat[::2], flat[1::2], strict=True)))


@given(ops.repeat_4d)
def repeat_4d(args: Args, cache: CacheConfig) -> Call:
    shape, dims = args[0].shape, args[1:]
    used = max([len(shape), *(n + 1 for n in range(4) if dims[n] != 1)])
    extents = (*shape, 1, 1, 1, 1)
    times = [dims[n] // extents[n] if extents[n] else 1 for n in range(used)]
    return Call(args, lambda x, *dims: np.tile(same_rank(x, used), times[::-1]), raw=True)


# -- rows and writes -------------------------------------------------------------------------------------


@given(ops.rows)
def rows(args: Args, cache: CacheConfig) -> Call:
    kind = args[0].dtype

    return Call(args, partial(taken_rows, kind), raw=True)


@given(ops.copy)
def copy(args: Args, cache: CacheConfig) -> Call:
    x, target = args

    def formula(x_raw: Array, target_raw: Array) -> Array | Number:
        if x.dtype is target.dtype:
            return x_raw.reshape(target_raw.shape)
        return converted(x_raw.reshape(target.shape[::-1]), x.dtype, target.dtype)

    return Call(args, formula, raw=True)


@given(ops.set)
def set_(args: Args, cache: CacheConfig) -> Call:
    x, part, offset, strides = args
    size, unit, kind = math.prod(x.shape), x.dtype.type_size, x.dtype
    numbers = x.layout.embed(np.arange(size).reshape(x.shape[::-1])).reshape(-1)  # for each place of the leaf
    inside = np.flatnonzero((numbers >= 0) & (numbers < size))
    places = np.empty(size, np.int64)  # for each element
    places[numbers[inside]] = inside
    apart = [_stride(places.reshape(x.shape[::-1]), n) for n in range(len(x.shape))]
    steps = (*apart[:1], *([step // unit for step in strides] or apart[1:]))
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

    return Call(args, formula, raw=True, **open_elements(part.dtype, kind, free))


def _stride(places: Array, dim: int) -> int:
    """The distance of neighbours along a dimension, in elements of the leaf."""
    along = places[(0,) * (places.ndim - 1 - dim)]
    along = along[(slice(None), *[0] * dim)]
    return int(along[1] - along[0]) if len(along) > 1 else 0


@given(ops.set_rows)
def set_rows(args: Args, cache: CacheConfig) -> Call:
    x, src, ids = args
    if ids.raw is not None and _repeats(ids.raw):
        return Call(args, verify=partial(one_of_the_rows, x.dtype), chance=True)

    def formula(x_raw: Array, src_raw: Array, ids_raw: Array) -> Array | Number:
        full = modulo(ids_raw, src_raw.shape[:-2])
        index = (*np.indices(full.shape, sparse=True)[:-1], full)
        return placed(x_raw, index, converted(src_raw, src.dtype, x.dtype), x.dtype)

    return Call(args, formula, raw=True)


def _repeats(ids: Array) -> bool:
    """Whether an id comes twice in a row of ids."""
    ordered = np.sort(ids, axis=-1)
    return bool((ordered[..., 1:] == ordered[..., :-1]).any())


# -- spatial and sequence --------------------------------------------------------------------------------


@given(ops.im2col)
def im2col(args: Args, cache: CacheConfig) -> Call:
    (kw, kh), kind = args[0].shape[:2], args[1].dtype

    def formula(weight: Number, data: Number, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int) -> Array:
        x = rank(data, 4)
        seen = windows(windows(x, 3, kw, s0, p0, d0), 2, kh, s1, p1, d1).value  # (N, IC, OH, KH, OW, KW)
        images, channels, oh, _, ow, _ = seen.shape
        patches = seen.transpose(0, 2, 4, 1, 3, 5).reshape(images, oh, ow, channels * kh * kw)
        return encode(patches, kind)

    return Call(args, formula)


@given(ops.conv3d)
def conv3d(args: Args, cache: CacheConfig) -> Call:
    weight, data, c, *flat = args
    kernel, sides = weight.shape[:3], data.shape[:3]
    planes, images = ((*operand.shape, 1)[3] // c for operand in (weight, data))

    def formula(weight: Number, data: Number, *given: int) -> Number:
        w = weight.reshape(planes, c, *kernel[::-1])
        x = data.activation().reshape(images, c, *sides[::-1])
        for axis, k, s, p, d in zip((4, 3, 2), kernel, flat[:3], flat[3:6], flat[6:], strict=True):
            x = windows(x, axis, k, s, p, d)
        y = w.einsum("ocijk,ncziyjxk->nozyx", x, c * int(np.prod(kernel)))
        return y.reshape(images * planes, *y.shape[2:])

    return Call(args, formula)


@given(ops.conv1d_dw)
def conv1d_dw(args: Args, cache: CacheConfig) -> Call:
    k, channels = args[1].shape[0], args[1].shape[-1]

    def formula(x: Number, weight: Number, s: int, p: int, d: int) -> Number:
        seen = windows(rank(x.activation(), 3), 2, k, s, p, d)  # (N, C, OT, K)
        return weight.reshape(channels, k).einsum("ck,nctk->nct", seen, k)

    return Call(args, formula)


@given(ops.avg_pool2d)
def avg_pool2d(args: Args, cache: CacheConfig) -> Call:
    def formula(x: Number, k: int, s: int, p: float) -> Number:
        axis, before, behind = len(x.shape) - 1, int(p), int(2 * p) - int(p)
        seen = windows(windows(x, axis, k, s, before, 1, behind), axis - 1, k, s, before, 1, behind)
        return _both(seen) / float(k * k)

    return Call(args, formula)


@given(ops.ssm_conv)
def ssm_conv(args: Args, cache: CacheConfig) -> Call:
    k = args[1].shape[0]

    def formula(x: Number, weight: Number) -> Number:
        if x.shape[-1] < k:
            return x[:, :, :0].moved(lambda a: a.swapaxes(-1, -2))
        seen = windows(rank(x.activation(), 3), 2, k, 1, 0, 1)  # (sequences, channels, tokens, K)
        return weight.einsum("ck,nctk->ntc", seen, k)

    return Call(args, formula)


# -- linear algebra and attention ------------------------------------------------------------------------


@given(ops.diag)
def diag(args: Args, cache: CacheConfig) -> Call:
    return Call(args, partial(diagonal, args[0].dtype))


@given(ops.tri)
def tri(args: Args, cache: CacheConfig) -> Call:
    return Call(args, partial(triangle, args[0].dtype))


@given(ops.solve_tri)
def solve_tri(args: Args, cache: CacheConfig) -> Call:
    return Call(args, solved, exact=False)


@given(ops.scaled_dot_product_attention)
def scaled_dot_product_attention(args: Args, cache: CacheConfig) -> Call:
    formula = partial(attention_formula, permuted=bool(args[-1]) and cache.permuted_v)
    return Call(args, formula, exact=False, free=empty_rows)
