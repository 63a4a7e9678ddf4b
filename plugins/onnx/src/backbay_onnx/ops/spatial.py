"""Convolutions, pooling and resampling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import numpy as np
from onnx import TensorProto

from backbay import Node, ops
from backbay.internals import Size

from ..lowering.kernel_view import Lowering, Operand
from ..memory.working_memory import nothing, results, times
from .kernel_table import kernel


def window_count(extent: Size, kernel_extent: Size, s: int, p: int, d: int) -> Size:
    """The number of windows of a kernel in a padded extent."""
    return (extent + 2 * p - (kernel_extent - 1) * d - 1) // s + 1


def _is_nothing(*operands: Operand) -> bool:
    return any(operand.is_empty() for operand in operands)


@kernel(ops.conv2d, working_memory=nothing)
def conv2d(
    b: Lowering, weight: Operand, data: Operand, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> str:
    if _is_nothing(weight, data):
        width = window_count(data.dim(0), weight.dim(0), s0, p0, d0)
        height = window_count(data.dim(1), weight.dim(1), s1, p1, d1)
        return b.zeros([width, height, weight.dim(3), data.dim(3)])
    return _convolved(b, data.of_rank(4), weight.of_rank(4), (s1, s0), (p1, p0), (d1, d0))


def _convolved(
    b: Lowering, data: str, weight: str, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> str:
    return b.add("Conv", data, weight, strides=list(strides), pads=[*pads, *pads], dilations=list(dilations))


@kernel(ops.conv3d, working_memory=nothing)
def conv3d(
    b: Lowering,
    weight: Operand,
    data: Operand,
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
) -> str:
    strides, pads, dilations = (s0, s1, s2), (p0, p1, p2), (d0, d1, d2)
    planes = [window_count(data.dim(n), weight.dim(n), strides[n], pads[n], dilations[n]) for n in range(3)]
    shape = [*planes, (weight.dim(3) // c) * (data.dim(3) // c)]
    if _is_nothing(weight, data):
        return b.zeros(shape)
    kernels = b.shaped(weight.floats, [*weight.dims(3), b.symbols.constant(c), weight.dim(3) // c])
    images = b.shaped(data.floats, [*data.dims(3), b.symbols.constant(c), data.dim(3) // c])
    y = _convolved(b, images, kernels, strides[::-1], pads[::-1], dilations[::-1])
    return b.shaped(y, shape)


def _windows(node: Node) -> int:
    """As many values as a kernel has taps."""
    x, weight = node.operands
    return 2 * 4 * node.size * weight.dim(0) + 4 * x.size


@kernel(ops.conv1d_dw, working_memory=_windows)
def conv1d_dw(b: Lowering, x: Operand, weight: Operand, s: int, p: int, d: int) -> str:
    """Windows of the data times the kernel of their channel, summed."""
    if _is_nothing(x, weight):
        return b.zeros([window_count(x.dim(0), weight.dim(0), s, p, d), *x.dims(3)[1:]])
    value, _ = _windowed(b, x.of_rank(3), 3, 2, x.dim(0), weight.dim(0), s, p, d)  # (N, C, OT, K)
    kernels = b.shaped(weight.floats, [weight.dim(0), 1, weight.dim(2)])  # (C, 1, K)
    return b.add("ReduceSum", b.add("Mul", value, kernels), b.ints(-1), keepdims=0)


@kernel(ops.im2col, working_memory=times(2, results))
def im2col(
    b: Lowering, weight: Operand, data: Operand, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> str:
    """By gathering: a product would spread values that are not finite."""
    # from (N, C, H, W) to (N, C, OH, KH, W), and to (N, C, OH, KH, OW, KW)
    value, height = _windowed(b, data.of_rank(4), 4, 2, data.dim(1), weight.dim(1), s1, p1, d1)
    value, width = _windowed(b, value, 5, 4, data.dim(0), weight.dim(0), s0, p0, d0)
    value = b.transposed(value, 0, 2, 4, 1, 3, 5)
    taps = weight.dim(0) * weight.dim(1) * weight.dim(2)
    return b.shaped(value, [taps, width, height, data.dim(3)])


def _windowed(
    b: Lowering, value: str, rank: int, axis: int, extent: Size, taps: Size, s: int, p: int, d: int
) -> tuple[str, Size]:
    """Split an axis into two, (windows, taps); also the number of windows."""
    count = window_count(extent, taps, s, p, d)
    if p:
        value = _padded(b, value, rank, {axis: (p, p)})
    return b.add("Gather", value, b.grid(0, [taps, count], [d, s]), axis=axis), count


def _padded(b: Lowering, value: str, rank: int, amounts: dict[int, tuple[int, int]]) -> str:
    """Zeros before and after. All axes are given: ONNX Runtime moves transposes wrongly past a pad of some axes."""
    both = [[amounts.get(axis, (0, 0))[side] for axis in range(rank)] for side in (0, 1)]
    return b.add("Pad", value, b.ints(*both[0], *both[1]), b.number(0))


@kernel(ops.avg_pool2d, working_memory=nothing)
def avg_pool2d(b: Lowering, x: Operand, k: int, s: int, p: float) -> str:
    near, far = int(p), int(2 * p) - int(p)
    rank = max(x.rank, 2)
    width, height = ((x.dim(n) + near + far - k) // s + 1 for n in (0, 1))
    if x.is_empty():
        return b.zeros([width, height, *x.dims()[2:]])
    value = x.of_rank(4)
    if far:
        value = _padded(b, value, 4, {2: (near, far), 3: (near, far)})
    if b.settings.plain:
        y = _window_means(b, value, [width, height], k, s)
    else:
        y = b.add("AveragePool", value, kernel_shape=[k, k], strides=[s, s])
    return b.ranked(y, 4, rank)


def _window_means(b: Lowering, value: str, extents: list[Size], k: int, s: int) -> str:
    """Sums of slices, first along a row, then of rows."""
    for n, extent in enumerate(extents):
        taps = [b.sliced(value, 3 - n, tap, (extent - 1) * s + tap + 1, s) for tap in range(k)]
        value = reduce(partial(b.add, "Add"), taps)
    return b.add("Div", value, b.number(k * k))


@kernel(ops.interpolate, working_memory=times(2, results))
def interpolate(b: Lowering, x: Operand, dims: tuple[Size, ...], mode: str) -> str:
    rank = len(dims)
    if any(size.same(0) for size in dims):
        return b.zeros(list(dims))
    value = x.of_rank(rank)
    for n, extent in enumerate(dims):
        axis = rank - 1 - n
        if mode == "bilinear" and n < 2:
            value = _linear(b, value, axis, x.dim(n), extent, n)
        else:
            value = _nearest(b, value, axis, x.dim(n), extent)
    return value


def _nearest(b: Lowering, value: str, axis: int, have: Size, want: Size) -> str:
    index = b.add("Div", b.grid(0, [want], [have]), b.scalar(want))
    return b.add("Gather", value, index, axis=axis)


def _linear(b: Lowering, value: str, axis: int, have: Size, want: Size, behind: int) -> str:
    """Pixels at their centres: t = (i + 0.5) * have / want - 0.5, in float64 until the weight is known."""
    centres = b.cast_to(b.grid(have, [want], [have * 2]), TensorProto.DOUBLE)  # 2 * (i + 0.5) * have
    doubled = b.add("Div", centres, b.cast_to(b.scalar(want), TensorProto.DOUBLE))
    half = b.constant(np.array(0.5))
    t = b.add("Sub", b.add("Mul", doubled, half), half)
    floor = b.add("Floor", t)
    share = b.cast_to(b.add("Sub", t, floor), TensorProto.FLOAT)
    share = b.add("Unsqueeze", share, b.ints(*range(1, behind + 1))) if behind else share
    low, zero = b.cast_to(floor, TensorProto.INT64), b.constant(np.array(0, np.int64))
    high = b.add("Add", low, b.constant(np.array(1, np.int64)))
    near, far = (
        b.add("Gather", value, b.add("Max", b.add("Min", index, b.scalar(have - 1)), zero), axis=axis)
        for index in (low, high)
    )
    rest = b.add("Sub", b.number(1), share)
    return b.add("Add", b.add("Mul", near, rest), b.add("Mul", far, share))
