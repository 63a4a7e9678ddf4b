"""Convolutions (products of windows and kernels), pooling and resampling."""

from __future__ import annotations

from typing import Literal

import numpy as np

from backbay import DType, Node, UnsupportedOpError, ops

from ..library.abi import Ptr
from ..library.avoidance import CONV_IN_F16, NEAREST_IN_F32
from ..lowering.builder import GgmlBuilder, kernel
from ..tensors.tensor_builder import LARGEST, four_dimensions
from .index import same_rows_of_slices
from .matrix import mul_mat

AVERAGE = 1  # of enum ggml_op_pool
SCALE_MODES = {"nearest": 0, "bilinear": 1}  # of enum ggml_scale_mode
WIDEST_POOL = 1 << 15  # so that its square fits 32 bits
WIDEST_PLANE = 1 << 24  # ggml counts pooled extents in f32
WIDEST_PADDING = (1 << 30) - 1  # so that twice the padding fits 32 bits


@kernel(ops.im2col)
def im2col(
    g: GgmlBuilder,
    weight: Node,
    data: Node,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
) -> Ptr:
    return _windows(g, g.new(DType.F32, four_dimensions(weight)), g.floats(data), s0, s1, p0, p1, d0, d1)


@kernel(ops.conv2d)
def conv2d(
    g: GgmlBuilder,
    weight: Node,
    data: Node,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
) -> Ptr:
    kernels = g.floats(weight)
    if not g.avoids(CONV_IN_F16):
        _check_padding("convolution", p0, p1)
        return g.call("conv_2d", kernels, g.floats(data), s0, s1, p0, p1, d0, d1)
    windows = _windows(g, kernels, g.floats(data), s0, s1, p0, p1, d0, d1)
    width, height, out, images = windows.ne[1], windows.ne[2], weight.dim(3), data.dim(3)
    product = _product(g, kernels, windows, out, width * height, images)
    return g.reshape(product, width, height, out, images)


@kernel(ops.conv3d)
def conv3d(
    g: GgmlBuilder,
    weight: Node,
    data: Node,
    c: int,
    s0: int = 1,
    s1: int = 1,
    s2: int = 1,
    p0: int = 0,
    p1: int = 0,
    p2: int = 0,
    d0: int = 1,
    d1: int = 1,
    d2: int = 1,
) -> Ptr:
    _check_padding("conv3d", p0, p1, p2)
    kernels, out, images = g.floats(weight), weight.dim(3) // c, data.dim(3) // c
    windows = g.call(
        "im2col_3d", kernels, g.floats(data), c, s0, s1, s2, p0, p1, p2, d0, d1, d2, int(DType.F32)
    )
    width, height, deep = tuple(windows.ne)[1:]  # the last dimension is depth times images
    depth = deep // images
    product = _product(g, kernels, windows, out, width * height * depth, images)
    return g.reshape(product, width, height, depth, out * images)


@kernel(ops.conv1d_dw)
def conv1d_dw(g: GgmlBuilder, x: Node, weight: Node, s: int = 1, p: int = 0, d: int = 1) -> Ptr:
    time, channels, batch = (x.dim(n) for n in range(3))
    taps = weight.dim(0)
    lines = g.reshape(g.floats(x), time, 1, 1, channels * batch)
    windows = _windows(g, g.new(DType.F32, (taps, 1, 1, 1)), lines, s, 1, p, 0, d, 1)
    windows = g.reshape(windows, taps, windows.ne[1], channels, batch)
    kernels = g.reshape(g.floats(weight), taps, 1, channels)
    if g.on_cpu:
        product = g.call("mul_mat", kernels, windows)
    else:  # products of a GPU may round to f16
        product = g.call("sum_rows", g.call("mul", windows, kernels))
    return g.reshape(product, windows.ne[1], channels, batch)


@kernel(ops.avg_pool2d)
def avg_pool2d(g: GgmlBuilder, x: Node, k: int, s: int, p: float = 0.0) -> Ptr:
    if k > WIDEST_POOL or max(x.dim(0), x.dim(1)) + 2 * p > WIDEST_PLANE:
        raise UnsupportedOpError(
            f"avg_pool2d: ggml takes windows up to {WIDEST_POOL} and planes up to {WIDEST_PLANE}"
        )
    return g.call("pool_2d", g.floats(x), AVERAGE, k, k, s, s, p, p)


@kernel(ops.interpolate)
def interpolate(
    g: GgmlBuilder, x: Node, dims: tuple[int, ...], mode: Literal["nearest", "bilinear"] = "nearest"
) -> Ptr:
    ne = (*dims, 1, 1, 1, 1)[:4]
    made = g.floats(x)
    if not g.avoids(NEAREST_IN_F32):
        return g.call("interpolate", made, *ne, SCALE_MODES[mode])
    for dim in (2, 3) if mode == "bilinear" else (0, 1, 2, 3):
        made = _nearest(g, made, dim, ne[dim])
    return made if mode == "nearest" else g.call("interpolate", g.contiguous(made), *ne, SCALE_MODES[mode])


def _nearest(g: GgmlBuilder, x: Ptr, dim: int, extent: int) -> Ptr:
    """Resample one dimension by picking rows: ggml's own resampling divides in f32, and may miss by one."""
    have = x.ne[dim]
    if have == extent:
        return x
    axes = [0, 1, 2, 3]
    axes[dim], axes[1] = 1, dim
    turned = g.contiguous(g.permute(x, *axes))
    ne = tuple(turned.ne)
    places = g.constant((np.arange(extent) * have // extent).astype(np.int32), DType.I32)
    picked = same_rows_of_slices(g, g.reshape(turned, ne[0], ne[1], ne[2] * ne[3]), places)
    return g.contiguous(g.permute(g.reshape(picked, ne[0], extent, ne[2], ne[3]), *axes))


def _windows(
    g: GgmlBuilder, kernels: Ptr, data: Ptr, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> Ptr:
    """(KW*KH*IC, OW, OH, N)"""
    _check_padding("convolution", p0, p1)
    return g.call("im2col", kernels, data, s0, s1, p0, p1, d0, d1, True, int(DType.F32))


def _check_padding(what: str, *paddings: int) -> None:
    if max(paddings) > WIDEST_PADDING:
        raise UnsupportedOpError(f"{what}: ggml takes paddings up to {WIDEST_PADDING}, got {list(paddings)}")


def _product(g: GgmlBuilder, kernels: Ptr, windows: Ptr, out: int, pixels: int, images: int) -> Ptr:
    """Every window times every kernel: (pixels, out, images)."""
    inner, rows = windows.ne[0], windows.ne[1] * windows.ne[2] * windows.ne[3]
    if inner * rows > LARGEST:
        raise MemoryError("the windows of a convolution fit no memory")
    product = mul_mat(g, g.reshape(windows, inner, rows), g.reshape(kernels, inner, out))
    return g.call("cont", g.permute(g.reshape(product, pixels, images, out), 0, 2, 1, 3))
