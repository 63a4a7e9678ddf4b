"""Calls of given operands, for the ops whose formula depends on more of a call than its decoded arguments.

For all other ops, the formula of a drawn call serves for any operands.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from backbay import CacheConfig, ops

from ..numbers.encoding import Array, opposite, stored_shape
from ..numbers.number import Number
from ..suite.case import Call, given
from .attention import attention_formula, empty_rows
from .elementwise import cast_call, clamp_call, fill_call
from .index import taken_rows
from .linear import diagonal, solved, triangle
from .shape import between_zeros, same_rank
from .spatial import patches
from .write import converted, copied_call, distinct_rows, no_integer, one_of_the_rows, open_elements, placed

Args = tuple[Any, ...]

# -- elementwise -----------------------------------------------------------------------------------------


@given(ops.neg)
def neg(args: Args, cache: CacheConfig) -> Call:
    return Call(args, partial(opposite, dtype=args[0].dtype), raw=True)


@given(ops.clamp)
def clamp(args: Args, cache: CacheConfig) -> Call:
    return clamp_call(args)


@given(ops.fill)
def fill(args: Args, cache: CacheConfig) -> Call:
    return fill_call(args)


@given(ops.cast)
def cast(args: Args, cache: CacheConfig) -> Call:
    return cast_call(args)


# -- shapes ----------------------------------------------------------------------------------------------


@given(ops.contiguous)
def contiguous(args: Args, cache: CacheConfig) -> Call:
    kind = args[0].dtype
    return Call(args, lambda x, shape: x.reshape(stored_shape(kind, shape)) if shape else x, raw=True)


@given(ops.pad)
def pad(args: Args, cache: CacheConfig) -> Call:
    return Call(args, partial(between_zeros, args[0].dtype, [(0, n) for n in args[1]]))


@given(ops.pad_ext)
def pad_ext(args: Args, cache: CacheConfig) -> Call:
    amounts = list(zip(args[1::2], args[2::2], strict=True))
    return Call(args, partial(between_zeros, args[0].dtype, amounts))


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
    return Call(args, partial(taken_rows, args[0].dtype), raw=True)


@given(ops.copy)
def copy(args: Args, cache: CacheConfig) -> Call:
    return copied_call(args)


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
    x, _, ids = args
    if ids.raw is not None and _repeats(ids.raw):
        return Call(args, verify=partial(one_of_the_rows, x.dtype), chance=True)

    return distinct_rows(args)


def _repeats(ids: Array) -> bool:
    """Whether an id comes twice in a row of ids."""
    ordered = np.sort(ids, axis=-1)
    return bool((ordered[..., 1:] == ordered[..., :-1]).any())


# -- patches ---------------------------------------------------------------------------------------------


@given(ops.im2col)
def im2col(args: Args, cache: CacheConfig) -> Call:
    return Call(args, partial(patches, args[1].dtype))


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
