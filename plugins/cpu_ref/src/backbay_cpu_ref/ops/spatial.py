"""Convolutions as products with windows of the data, pooling and resampling by gathering."""

from collections.abc import Sequence

import numpy as np

from backbay import ops

from .kernel_table import Array, kernel


def sliding_windows(x: Array, axis: int, size: int, stride: int, padding: int, dilation: int) -> Array:
    """x with one axis replaced by two, (windows, taps); `padding` is the number of zeros before and after together.

    Every index outside of x gathers one zero after the data, so padding takes no memory.
    """
    extent = x.shape[axis]
    count = (extent + padding - dilation * (size - 1) - 1) // stride + 1
    index = np.arange(count)[:, None] * stride + np.arange(size) * dilation - padding // 2
    index[(index < 0) | (index >= extent)] = extent
    zero = np.zeros_like(x, shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return np.take(np.concatenate([x, zero], axis), index, axis)


def image_patches(
    data: Array,
    sizes: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
) -> Array:
    """Images (N, IC, H, W) as (N, IC, OH, KH, OW, KW), or with any other number of axes to slide over."""
    for i, size in enumerate(sizes):
        data = sliding_windows(data, 2 + 2 * i, size, strides[i], 2 * paddings[i], dilations[i])
    return data


def convolve(weight: Array, seen: Array) -> Array:
    """Kernels (OC, IC, KH, KW) times patches: (N, OC, OH, OW)."""
    inner = [*range(1, weight.ndim)]
    taps = [1, *range(3, seen.ndim, 2)]
    return np.moveaxis(np.tensordot(weight, seen, (inner, taps)), 0, 1)


@kernel(ops.conv2d)
def conv2d(weight: Array, data: Array, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int) -> Array:
    weight, data = np.array(weight, ndmin=4), np.array(data, ndmin=4)
    return convolve(weight, image_patches(data, weight.shape[2:], (s1, s0), (p1, p0), (d1, d0)))


@kernel(ops.im2col)
def im2col(weight: Array, data: Array, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int) -> Array:
    weight, data = np.array(weight, ndmin=4), np.array(data, ndmin=4)
    seen = image_patches(data, weight.shape[2:], (s1, s0), (p1, p0), (d1, d0))
    n, channels, height, kh, width, kw = seen.shape
    return seen.transpose(0, 2, 4, 1, 3, 5).reshape(n, height, width, channels * kh * kw)


@kernel(ops.conv3d)
def conv3d(
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
    weight, data = np.array(weight, ndmin=4), np.array(data, ndmin=4)
    weight = weight.reshape(weight.shape[0] // c, c, *weight.shape[1:])  # (OC, IC, KD, KH, KW)
    data = data.reshape(data.shape[0] // c, c, *data.shape[1:])  # (N, IC, D, H, W)
    y = convolve(weight, image_patches(data, weight.shape[2:], (s2, s1, s0), (p2, p1, p0), (d2, d1, d0)))
    return y.reshape(y.shape[0] * y.shape[1], *y.shape[2:])


@kernel(ops.conv1d_dw)
def conv1d_dw(x: Array, weight: Array, s: int, p: int, d: int) -> Array:
    x, weight = np.array(x, ndmin=3), np.array(weight, ndmin=3)
    taps = weight.shape[-1]
    seen = sliding_windows(x, x.ndim - 1, taps, s, 2 * p, d)  # (N, C, OT, K)
    y: Array = (seen * weight.reshape(-1, 1, taps)).sum(-1)
    return y.reshape(y.shape[-3:])


@kernel(ops.avg_pool2d)
def avg_pool2d(x: Array, k: int, s: int, p: float) -> Array:
    x = np.array(x, ndmin=2)
    for axis in (x.ndim - 1, x.ndim - 2):
        x = sliding_windows(x, axis, k, s, int(2 * p), 1).sum(axis + 1)
    return x / (k * k)


@kernel(ops.interpolate)
def interpolate(x: Array, dims: Sequence[int], mode: str) -> Array:
    x = np.array(x, ndmin=len(dims))
    if 0 in dims:
        return np.zeros(dims[::-1])
    for n, extent in enumerate(dims):
        resample = sample_linear if mode == "bilinear" and n < 2 else sample_nearest
        x = resample(x, x.ndim - 1 - n, extent)
    return x


def sample_nearest(x: Array, axis: int, extent: int) -> Array:
    return np.take(x, np.arange(extent) * x.shape[axis] // extent, axis)


def sample_linear(x: Array, axis: int, extent: int) -> Array:
    last = x.shape[axis] - 1
    t = (np.arange(extent) + 0.5) * x.shape[axis] / extent - 0.5
    low = np.floor(t).astype(np.int64)
    share = (t - low).reshape(-1, *[1] * (x.ndim - 1 - axis))
    before, behind = (np.take(x, np.clip(j, 0, last), axis) for j in (low, low + 1))
    return before * (1 - share) + behind * share
