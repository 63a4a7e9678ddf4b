"""Cases of convolutions, pooling and resampling; windows are gathered by index, unlike in cpu_ref."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from backbay import DType, ops

from ..draw.data import Numbers
from ..draw.draw import PAST, Draw
from ..numbers.encoding import Array, encode
from ..numbers.number import Number
from ..suite.case import Args, Call, builder, case


def windows(x: Number, axis: int, size: int, s: int, p: int, d: int, behind: int | None = None) -> Number:
    """An axis replaced by two, (windows, taps), with p zeros before the data and `behind` zeros after."""
    behind = p if behind is None else behind
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (p, behind)
    padded = x.moved(lambda a: np.pad(a, widths))
    count = (padded.shape[axis] - d * (size - 1) - 1) // s + 1
    index = s * np.arange(count)[:, None] + d * np.arange(size)
    return padded.moved(lambda a: np.take(a, index, axis))


def rank(x: Number, wanted: int) -> Number:
    return x.reshape(*(1,) * (wanted - len(x.shape)), *x.shape)


Along = tuple[int, int, int]  # a stride, a padding and a dilation


def geometry(draw: Draw, extent: int, kernel: int) -> Along:
    s, p, d = draw.pick(1, 2, 3), draw.pick(0, 1, 2), draw.pick(1, 1, 2, 3)
    while d * (kernel - 1) + 1 > extent + 2 * p:
        p, d = p + 1, max(1, d - 1)
    return s, p, d


def plane(draw: Draw, width: int, height: int) -> tuple[tuple[int, int], Along, Along]:
    """A kernel over an image, with its geometry; often 3x3 without strides, which has code of its own in many backends."""
    if draw.flag(3):
        p0, p1 = draw.pick((1, 1), (0, 1), (1, 0), (2, 1), (0, 0))
        return (3, 3), (1, max(p0, int(width < 3)), 1), (1, max(p1, int(height < 3)), 1)
    kernel = draw.pick(1, 2, 3, 5), draw.pick(1, 2, 3)
    return kernel, geometry(draw, width, kernel[0]), geometry(draw, height, kernel[1])


def image(draw: Draw) -> tuple[tuple[int, int], tuple[int, int], Along, Along]:
    """The sides of an image and of a kernel, with its geometry.

    One image in ten is cut into patches: the stride is as wide as the kernel, and columns and rows are left over.
    """
    if draw.on_turn(1, 10):
        kernel = draw.pick(2, 3, 4), draw.pick(2, 3, 4)
        width, height = (draw.pick(2, 1, 3) * side + draw.integer(1, side - 1) for side in kernel)
        return (width, height), kernel, (kernel[0], 0, 1), (kernel[1], 0, 1)
    width, height = image_side(draw), image_side(draw)
    return (width, height), *plane(draw, width, height)


def channels(draw: Draw) -> tuple[int, int, int]:
    """Channels of the data and of the result, and images; now and then none of one of them."""
    counts = [draw.pick(1, 2, 3, 9), draw.pick(1, 2, 5, 8), draw.pick(1, 2, 2, 5)]
    if draw.flag(10):
        counts[draw.below(3)] = 0
    return counts[0], counts[1], counts[2]


def image_side(draw: Draw) -> int:
    return draw.pick(5, 1, 4, 7, 8, 9, 16, 17)


def planes(x: Number, kernel: tuple[int, ...], geometry: tuple[int, ...]) -> Number:
    """The windows of a kernel (KH, KW) over images: (N, IC, OH, KH, OW, KW)."""
    s0, s1, p0, p1, d0, d1 = geometry
    return windows(windows(x, 3, kernel[1], s0, p0, d0), 2, kernel[0], s1, p1, d1)


def conv2d_formula(weight: Number, data: Number, *geometry: int) -> Number:
    w, x = rank(weight.weight(), 4), rank(data.activation(), 4)  # (OC, IC, KH, KW), (N, IC, H, W)
    seen = planes(x, w.shape[2:], geometry)
    return w.einsum("ocij,ncyixj->noyx", seen, int(np.prod(w.shape[1:])))


MANY = (2, 2, 2, 3, 3, 2, 1, 0, 1)  # the convolution of several hundred images
PATCHES = (
    # KW, KH, IC, OC, W, H, stride, padding, dilation
    (14, 14, 3, 5, 28, 42, 14, 0, 1),
    (16, 16, 3, 4, 32, 16, 16, 0, 1),
    (3, 3, 33, 40, 5, 4, 1, 1, 1),
    (1, 1, 130, 65, 3, 4, 1, 0, 1),
    (7, 7, 3, 33, 11, 9, 2, 3, 1),
    (3, 3, 65, 2, 4, 5, 1, 1, 2),
    (32, 32, 1, 2, 64, 33, 32, 0, 1),
    (2, 2, 64, 33, 6, 6, 2, 0, 1),
    (5, 1, 4, 3, 70, 1, 1, 2, 1),
    (1, 3, 2, 3, 2, 1030, 1, 1, 1),
    (4, 4, 2, 3, 1, 1, 1, 4, 1),
    (4, 4, 3, 5, 11, 9, 4, 0, 1),
    (14, 14, 3, 2, 33, 41, 14, 0, 1),
    (1, 1, 5, 4, 9, 8, 2, 1, 1),
    (1, 1, 33, 3, 7, 7, 3, 2, 1),
    (16, 16, 1, 33, 48, 32, 16, 0, 1),
    (16, 16, 4, 3, 33, 40, 10, 3, 1),
    (3, 1, 1, 2, PAST, 1, 1, 1, 1),
    (1, 3, 2, 1, 1, PAST, 2, 1, 1),
    (1, 1, 300, 300, 2, 1, 1, 0, 1),
    (1, 1, 2, 1030, 3, 1, 1, 0, 1),
    (3, 3, 520, 2, 3, 4, 1, 1, 1),
    (3, 3, 40, 33, 70, 66, 1, 1, 1),
    MANY,
)
"""Convolutions of models: patches, many channels, and images longer than a row of threads."""


def image_count(patch: tuple[int, ...]) -> int:
    """Two images, unless each is large: a fault of large extents may only show in the second one."""
    return 300 if patch == MANY else 1 if patch[4] * patch[5] > 4096 else 2


@case(ops.conv2d)
def conv2d(draw: Draw) -> Call:
    ic, oc, n = channels(draw)
    (width, height), (kw, kh), (s0, p0, d0), (s1, p1, d1) = image(draw)
    if draw.flag(8):  # a product by channels, which a kernel of its own may compute
        kw = kh = d0 = d1 = 1
    if patch := draw.listed(*PATCHES):
        kw, kh, ic, oc, width, height, s0, p0, d0 = patch
        n, s1, p1, d1 = image_count(patch), s0, p0, d0
    terms = kw * kh * max(1, ic)
    weight = draw.floats((kw, kh, ic, oc), Numbers("", terms=terms, most=63))
    fill = Numbers("ni", terms=terms, partner=weight, few=True, loud=True)
    data = draw.floats((width, height, ic, n), fill, dtype=draw.other_float(), activated=True)
    args = (weight, data, s0, s1, p0, p1, d0, d1)
    return Call(args, conv2d_formula, batch=(None, 3), batch_out=3, doubled=(True, True))


@case(ops.im2col)
def im2col(draw: Draw) -> Call:
    ic, _, n = channels(draw)
    (width, height), (kw, kh), (s0, p0, d0), (s1, p1, d1) = image(draw)
    if patch := draw.listed(*PATCHES):
        kw, kh, ic, _, width, height, s0, p0, d0 = patch
        n, s1, p1, d1 = image_count(patch), s0, p0, d0
    weight = draw.floats((kw, kh, ic, draw.pick(1, 2)), Numbers(), dtype=draw.other_float())
    data = draw.floats((width, height, ic, n), Numbers("0nisb"))
    return im2col_call((weight, data, s0, s1, p0, p1, d0, d1), batch=(None, 3), batch_out=3)


@builder(ops.im2col)
def im2col_call(args: Args, **relations: Any) -> Call:
    return Call(args, partial(patches, args[1].dtype), **relations)


def patches(dtype: DType, weight: Number, data: Number, *geometry: int) -> Array:
    seen = planes(rank(data, 4), rank(weight, 4).shape[2:], geometry).value
    images, channels, oh, kh, ow, kw = seen.shape
    return encode(seen.transpose(0, 2, 4, 1, 3, 5).reshape(images, oh, ow, channels * kh * kw), dtype)


@case(ops.conv3d)
def conv3d(draw: Draw) -> Call:
    kernel = [draw.pick(1, 2, 3) for _ in range(3)]
    sides = [draw.pick(4, 1, 3, 5, 6) for _ in range(3)]
    c, oc, n = draw.pick(1, 2, 3), draw.pick(1, 2, 3), draw.pick(1, 2)
    along = [geometry(draw, side, k) for side, k in zip(sides, kernel, strict=True)]
    patch = draw.listed(
        ([14, 14, 2], [28, 14, 2], (3, 5, 2), [(14, 0, 1)] * 2 + [(2, 0, 1)]),
        ([3, 3, 3], [4, 4, 3], (33, 3, 2), [(1, 1, 1)] * 3),
        ([1, 2, 3], [3, 3, 3], (2, 65, 2), [(1, 0, 1)] * 3),
        ([2, 1, 1], [3, 0, 2], (2, 3, 1), [(1, 1, 1)] * 3),
        ([2, 2, 2], [3, 3, 3], (2, 0, 2), [(1, 0, 1)] * 3),
        ([2, 2, 2], [3, 3, 3], (2, 2, 0), [(1, 0, 1)] * 3),
        ([4, 4, 4], [1, 1, 1], (2, 2, 1), [(1, 2, 1)] * 3),
        ([2, 3, 2], [5, 6, 40], (1, 1, 3), [(1, 0, 1), (2, 1, 2), (3, 0, 1)]),
        ([3, 3, 3], [3, 2, 2], (300, 2, 2), [(1, 1, 1)] * 3),
        ([1, 1, 2], [2, 3, 2], (2, 520, 2), [(1, 0, 1)] * 3),
        ([2, 2, 1], [2, 3, 1], (2, 1, 300), [(1, 0, 1)] * 3),
        ([3, 1, 1], [PAST, 1, 1], (1, 1, 1), [(1, 1, 1)] * 3),
        ([1, 3, 1], [1, PAST, 1], (1, 1, 1), [(1, 1, 1)] * 3),
        ([1, 1, 3], [1, 2, 4100], (1, 1, 1), [(1, 1, 1)] * 3),
    )
    kernel, sides, (c, oc, n), along = patch or (kernel, sides, (c, oc, n), along)
    terms = c * int(np.prod(kernel))
    weight = draw.floats((*kernel, c * oc), Numbers("", terms=terms, most=63))
    fill = Numbers("ni", terms=terms, partner=weight, few=True, loud=True)
    data = draw.floats((*sides, c * n), fill, dtype=draw.other_float(), activated=True)

    flat = [value for i in range(3) for value in [a[i] for a in along]]
    return Call((weight, data, c, *flat), conv3d_formula, doubled=(True, True))


def conv3d_formula(weight: Number, data: Number, c: int, *geometry: int) -> Number:
    planes, images = (rank(x, 4).shape[0] // c for x in (weight, data))
    kernel = rank(weight, 4).shape[1:]  # (KD, KH, KW)
    w = weight.weight().reshape(planes, c, *kernel)
    x = data.activation().reshape(images, c, *rank(data, 4).shape[1:])
    along = zip((4, 3, 2), kernel[::-1], geometry[:3], geometry[3:6], geometry[6:], strict=True)
    for axis, k, s, p, d in along:
        x = windows(x, axis, k, s, p, d)
    y = w.einsum("ocijk,ncziyjxk->nozyx", x, c * int(np.prod(kernel)))
    return y.reshape(images * planes, *y.shape[2:])


BY_CHANNEL = (
    # K, T, C, N, s, p, d
    *((31, 70, 65, 2, 1, 15, 1), (9, 40, 128, 2, 1, 4, 1), (5, 300, 2, 2, 2, 2, 3), (4, 5, 200, 2, 1, 3, 1)),
    *((3, 9, 0, 1, 1, 0, 1), (3, 9, 2, 0, 1, 0, 1), (3, 0, 4, 2, 1, 2, 1), (33, 33, 3, 1, 1, 0, 1)),
    *((3, 1030, 2, 2, 1, 1, 1), (3, PAST, 1, 1, 1, 1, 1), (3, 4, 300, 2, 1, 1, 1), (2, 3, 2, 300, 1, 0, 1)),
    (4, 5, 5120, 1, 1, 3, 1),
)


@case(ops.conv1d_dw)
def conv1d_dw(draw: Draw) -> Call:
    k, t = draw.pick(1, 2, 3, 4), draw.side(130, least=1)
    channels, n = draw.pick(1, 3, 8, 17, 33), draw.pick(1, 2)
    size = (k, t, channels, n, *geometry(draw, t, k))
    k, t, channels, n, s, p, d = draw.listed(*BY_CHANNEL) or size
    weight = draw.floats((k, 1, channels), Numbers("", terms=k, most=63), dtype=draw.other_float())
    fill = Numbers("ni", terms=k, partner=weight, few=True, loud=True)
    x = draw.floats((t, channels, n), fill, activated=True)
    args = (x, weight, s, p, d)
    return Call(args, conv1d_dw_formula, batch=(2, None), batch_out=2, doubled=(True, True))


def conv1d_dw_formula(x: Number, weight: Number, s: int, p: int, d: int) -> Number:
    channels, _, k = rank(weight, 3).shape
    seen = windows(rank(x.activation(), 3), 2, k, s, p, d)  # (N, C, OT, K)
    return weight.weight().reshape(channels, k).einsum("ck,nctk->nct", seen, k)


POOLS = (
    # k, s, p, W, H
    (16, 16, 0.0, 32, 16),
    (4, 4, 0.0, 64, 64),
    (14, 14, 0.0, 28, 14),
    (27, 27, 0.0, 27, 27),
    (2, 2, 0.0, 300, 3),
    (3, 1, 1.0, 1, 1),
    (64, 1, 0.0, 64, 66),
    (9, 3, 4.0, 1, 2),
    (2, 2, 0.0, PAST, 2),
    (2, 1, 0.5, 2, 4100),
)
"""Pools of models, some of the whole image."""


@case(ops.avg_pool2d)
def avg_pool2d(draw: Draw) -> Call:
    k = draw.pick(2, 1, 4) if draw.exact else draw.pick(2, 1, 3, 5)
    s, p = draw.pick(1, 2, 3), draw.pick(0.0, 0.5, 1.0, 1.5)
    sides = [max(image_side(draw), k) for _ in range(2)]
    large = draw.listed(*POOLS)
    if large is not None and (not draw.exact or large[0] & (large[0] - 1) == 0):
        k, s, p, *sides = large
    outer = draw.by_turn(draw.sides(draw.below(3), 12), (300,), (1, 300), each=30) if large is None else ()
    x = draw.floats((*sides, *outer), Numbers("0ni", terms=k * k, few=True, loud=True))
    return Call((x, k, s, p), avg_pool2d_formula, doubled=(True,))


def avg_pool2d_formula(x: Number, k: int, s: int, p: float) -> Number:
    axis, before, behind = len(x.shape) - 1, int(p), int(2 * p) - int(p)
    seen = windows(windows(x, axis, k, s, before, 1, behind), axis - 1, k, s, before, 1, behind)
    *lead, oh, _, ow, _ = seen.shape  # (..., OH, KH, OW, KW)
    flat = seen.moved(lambda a: a.swapaxes(-3, -2)).reshape(*lead, oh, ow, k * k)
    return flat.sum()[..., 0] / float(k * k)


@case(ops.interpolate)
def interpolate(draw: Draw) -> Call:
    mode = draw.by_turn("nearest", "bilinear")
    shape = (draw.pick(3, 1, 2, 8, 17), draw.pick(3, 1, 2, 5), *draw.sides(draw.below(3), 8, least=1))
    dims = [max(1, n * draw.pick(1, 2, 3) // draw.pick(1, 1, 2)) + draw.pick(0, 1) for n in shape]
    if draw.flag(4):  # n / m in single precision falls below the whole number
        pairs = [(14, 46), (26, 22), (9, 111), (2, 82), (6, 74)]
        pairs += [(14, 2), (98, 14), (1000, 10)] if mode == "nearest" else []
        n, dims[0] = draw.pick(*pairs)
        shape = (n, *shape[1:])
    listed = draw.listed(
        ((17, 5), (1, 1)),
        ((8, 8, 3), (1, 1, 1)),
        ((9, 4), (1, 4)),
        ((14, 14, 2), (2, 2, 2)),
        ((3, 4, 2), (0, 4, 2)),
        ((0, 4), (0, 4)),
        ((64, 3), (2, 3)),
        ((27, 27, 2), (16, 16, 2)),
        ((2, 2, 40), (70, 3, 40)),
        ((1, 1), (33, 65)),
        ((5, 6, 4, 3), (5, 6, 2, 7)),
        ((16, 16, 3), (24, 40, 3)),
        ((), (3, 2)),
        ((5,), (9, 1, 1, 2)),
        ((2, 3, 300), (4, 3, 300)),
        ((2, 1, 3, 300), (3, 1, 3, 300)),
        ((4100, 2), (4100, 4)),
        ((3, 4100), (6, 4100)),
    )
    if listed is not None:
        shape, dims = listed[0], list(listed[1])
    dims = [*dims, *[1] * draw.below(5 - len(dims))]
    x = draw.floats(shape, Numbers("0nisb" if mode == "nearest" else "0", most=255))

    def formula(x: Number, dims: Sequence[int], mode: str) -> Number:
        y = rank(x, len(dims))
        for n, extent in enumerate(dims):
            axis = len(dims) - 1 - n
            y = linear(y, axis, extent) if mode == "bilinear" and n < 2 else nearest(y, axis, extent)
        return y

    return Call((x, tuple(dims), mode), formula, exact=mode == "nearest", doubled=(True,))


def nearest(x: Number, axis: int, extent: int) -> Number:
    index = [i * x.shape[axis] // extent for i in range(extent)]
    return x.moved(lambda a: np.take(a, index, axis))


def linear(x: Number, axis: int, extent: int) -> Number:
    n = x.shape[axis]
    t = (np.arange(extent) + 0.5) * n / extent - 0.5
    low = np.floor(t).astype(int)
    column = (-1, *[1] * (len(x.shape) - 1 - axis))
    # The position between two pixels is itself rounded, by some roundoffs of the position.
    share = Number((t - low).reshape(column), 4 * x.cost.step * (np.abs(t).reshape(column) + 1), x.cost)
    a, b = (x.moved(lambda v, j=j: np.take(v, np.clip(j, 0, n - 1), axis)) for j in (low, low + 1))  # type: ignore[misc]
    return a * (1.0 - share) + b * share
