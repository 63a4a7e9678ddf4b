"""Convolutions as products with windows of the data, pooling and resampling by gathering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from .table import Array, kernel, numbers, take, with_rank, zeros


def sliding_windows(
    xp: Any, x: Array, axis: int, size: int, stride: int, padding: int, dilation: int
) -> Array:
    """x with one axis replaced by two, (windows, taps); `padding` zeros lie before and after, together."""
    extent = x.shape[axis]
    count = (extent + padding - dilation * (size - 1) - 1) // stride + 1
    index = np.arange(count)[:, None] * stride + np.arange(size) * dilation - padding // 2
    index[(index < 0) | (index >= extent)] = extent  # a zero behind the data
    return take(xp, xp.concat([x, zeros(xp, x, axis, 1)], axis=axis), index, axis)


def image_patches(
    xp: Any,
    data: Array,
    sizes: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> Array:
    """Images (N, IC, H, W) as (N, IC, OH, KH, OW, KW), or with any other number of axes to slide over."""
    for i, size in enumerate(sizes):
        data = sliding_windows(xp, data, 2 + 2 * i, size, strides[i], 2 * pads[i], dilations[i])
    return data


def convolve(xp: Any, weight: Array, seen: Array) -> Array:
    """Kernels (OC, IC, KH, KW) times patches: (N, OC, OH, OW)."""
    axes = [*range(1, weight.ndim)], [1, *range(3, seen.ndim, 2)]
    return xp.moveaxis(xp.tensordot(weight, seen, axes=axes), 0, 1)


@kernel(ops.conv2d)
def conv2d(
    xp: Any, weight: Array, data: Array, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> Array:
    weight, data = with_rank(weight, 4), with_rank(data, 4)
    return convolve(xp, weight, image_patches(xp, data, weight.shape[2:], (s1, s0), (p1, p0), (d1, d0)))


@kernel(ops.im2col)
def im2col(
    xp: Any, weight: Array, data: Array, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> Array:
    weight, data = with_rank(weight, 4), with_rank(data, 4)
    seen = image_patches(xp, data, weight.shape[2:], (s1, s0), (p1, p0), (d1, d0))
    n, channels, height, kh, width, kw = seen.shape
    return xp.permute_dims(seen, (0, 2, 4, 1, 3, 5)).reshape(n, height, width, channels * kh * kw)


@kernel(ops.conv3d)
def conv3d(
    xp: Any,
    weight: Array,
    data: Array,
    c: int,
    s0: int,
    s1: int,
    s2: int,
    p0: int,
    p1: int,
    p2: int,
    d0: int,
    d1: int,
    d2: int,
) -> Array:
    weight, data = with_rank(weight, 4), with_rank(data, 4)
    weight = weight.reshape(weight.shape[0] // c, c, *weight.shape[1:])  # (OC, IC, KD, KH, KW)
    data = data.reshape(data.shape[0] // c, c, *data.shape[1:])  # (N, IC, D, H, W)
    y = convolve(
        xp, weight, image_patches(xp, data, weight.shape[2:], (s2, s1, s0), (p2, p1, p0), (d2, d1, d0))
    )
    return y.reshape(y.shape[0] * y.shape[1], *y.shape[2:])


@kernel(ops.conv1d_dw)
def conv1d_dw(xp: Any, x: Array, weight: Array, s: int, p: int, d: int) -> Array:
    x, taps = with_rank(x, 3), weight.shape[-1]
    seen = sliding_windows(xp, x, 2, taps, s, 2 * p, d)  # (N, C, OT, K)
    return xp.sum(seen * weight.reshape(-1, 1, taps), axis=-1)


@kernel(ops.avg_pool2d)
def avg_pool2d(xp: Any, x: Array, k: int, s: int, p: float) -> Array:
    x = with_rank(x, 4)
    for axis in (3, 2):
        x = xp.sum(sliding_windows(xp, x, axis, k, s, int(2 * p), 1), axis=axis + 1)
    return x / (k * k)


@kernel(ops.interpolate)
def interpolate(xp: Any, x: Array, dims: Sequence[int], mode: str) -> Array:
    x = with_rank(x, max(x.ndim, len(dims)))
    if 0 in dims:
        return xp.zeros(tuple(dims)[::-1], dtype=x.dtype)
    for n, extent in enumerate(dims):
        resample = sample_linear if mode == "bilinear" and n < 2 else sample_nearest
        x = resample(xp, x, x.ndim - 1 - n, extent)
    return x


def sample_nearest(xp: Any, x: Array, axis: int, extent: int) -> Array:
    return take(xp, x, np.arange(extent) * x.shape[axis] // extent, axis)


def sample_linear(xp: Any, x: Array, axis: int, extent: int) -> Array:
    last = x.shape[axis] - 1
    t = (np.arange(extent) + 0.5) * x.shape[axis] / extent - 0.5
    low = np.floor(t).astype(np.int64)
    share = numbers(xp, t - low).reshape(-1, *[1] * (x.ndim - 1 - axis))
    before, behind = (take(xp, x, np.clip(j, 0, last), axis) for j in (low, low + 1))
    return before * (1 - share) + behind * share
