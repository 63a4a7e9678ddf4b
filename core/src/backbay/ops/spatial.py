"""Convolutions, pooling and resampling: dimension 0 is width, 1 is height and, in conv3d, 2 is depth."""

from typing import Literal

from ..types.dtype import DType
from ..types.spec import MAX_RANK, Spec, require, require_float, require_rank, result_spec
from .op_declaration import SizeAttrs, op

_LIMIT = 1 << 30  # C code has 32 bits for strides, dilations and twice the padding


def _windows(along: str, extent: int, kernel: int, s: int, p: int, d: int) -> int:
    """The number of windows of a kernel in a padded extent."""
    require(kernel >= 1, "the kernel is empty along {}", along)
    require(1 <= s <= _LIMIT, "the stride along {} must be in [1, 2^30], got {}", along, s)
    require(0 <= p <= _LIMIT, "the padding along {} must be in [0, 2^30], got {}", along, p)
    require(1 <= d <= _LIMIT, "the dilation along {} must be in [1, 2^30], got {}", along, d)
    reach, room = d * (kernel - 1) + 1, extent + 2 * p
    rule = "along {} the kernel spans {}, more than the {} of the padded data"
    require(reach <= room, rule, along, reach, room)
    return (room - reach) // s + 1


def _planes(
    weight: Spec, data: Spec, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> tuple[int, int]:
    """Check the operands of a two-dimensional convolution; return the width and height of its result."""
    require_float(weight)
    require_float(data, "the data")
    rule = "dimension 2, the input channels, must match, {} != {}"
    require(weight.dim(2) == data.dim(2), rule, weight.dim(2), data.dim(2))
    width = _windows("width", data.dim(0), weight.dim(0), s0, p0, d0)
    return width, _windows("height", data.dim(1), weight.dim(1), s1, p1, d1)


@op
def conv2d(
    weight: Spec, data: Spec, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
) -> Spec:
    """The convolution of neural networks: a cross-correlation of images with the receiver's kernels, without flips.

    y[x,y,o,n] = sum over i,j,c of weight[i,j,c,o] * data[x*s0 + i*d0 - p0, y*s1 + j*d1 - p1, c, n],
    where data outside [0, W) and [0, H) is 0.

    weight is float (KW, KH, IC, OC), data is float (W, H, IC, N); y is f32 (OW, OH, OC, N), always of four
    dimensions, with OW = (W + 2*p0 - d0*(KW-1) - 1) // s0 + 1, and OH likewise. Strides s and dilations d are at
    least 1, paddings p at least 0, all at most 2^30. KW >= 1, and the kernel must fit: d0*(KW-1) + 1 <= W + 2*p0;
    likewise for the height. OC = 0 or N = 0 gives an empty result, IC = 0 gives zeros; with W = 0 all data is
    padding. A value that is not finite follows IEEE arithmetic in every window that contains it, and affects no
    other window; where it meets a weight of 0, or an infinite weight meets padding, the result may be NaN or not. A
    backend may round data and weight to the types that its `precision` declares, and sum in the declared
    accumulation type.
    """
    width, height = _planes(weight, data, s0, s1, p0, p1, d0, d1)
    return result_spec(DType.F32, (width, height, weight.dim(3), data.dim(3)))


@op
def im2col(
    weight: Spec, data: Spec, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
) -> Spec:
    """The windows of conv2d, each as one row; only the receiver's shape is used.

    y[i + KW*(j + KH*c), x, y, n] = data[x*s0 + i*d0 - p0, y*s1 + j*d1 - p1, c, n], and 0 outside [0, W) and
    [0, H).

    weight is float (KW, KH, IC, OC), data is float (W, H, IC, N); y is (KW*KH*IC, OW, OH, N) of data's dtype,
    always of four dimensions. OW, OH and the rules for strides, paddings, dilations and empty dimensions are
    conv2d's. Values of data are moved unchanged, NaN and infinities too.
    """
    width, height = _planes(weight, data, s0, s1, p0, p1, d0, d1)
    window = weight.dim(0) * weight.dim(1) * weight.dim(2)
    return result_spec(data.dtype, (window, width, height, data.dim(3)))


@op
def conv3d(
    weight: Spec,
    data: Spec,
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
) -> Spec:
    """conv2d with depth as dimension 2. Dimension 3 holds channels and kernels (or images), channels innermost.

    y[x,y,z,o + OC*n] = sum over i,j,k,a in [0, c) of weight[i,j,k,a + c*o] * data[x*s0 + i*d0 - p0, y*s1 +
    j*d1 - p1, z*s2 + k*d2 - p2, a + c*n], where data outside of its extents is 0.

    weight is float (KW, KH, KD, c*OC), data is float (W, H, D, c*N); y is f32 (OW, OH, OD, OC*N), always of
    four dimensions. c, the input channels, is at least 1 and divides dimension 3 of weight and data. OW, OH, OD, the
    rules for strides, paddings and dilations, the edge cases and the precision are conv2d's.
    """
    require_float(weight)
    require_float(data, "the data")
    require(c >= 1, "c, the input channels, must be at least 1, got {}", c)
    rule = "dimension 3 must be a multiple of the {} channels, got {}"
    require(weight.dim(3) % c == 0, rule, c, weight.dim(3))
    rule = "dimension 3 of the data must be a multiple of the {} channels, got {}"
    require(data.dim(3) % c == 0, rule, c, data.dim(3))
    width = _windows("width", data.dim(0), weight.dim(0), s0, p0, d0)
    height = _windows("height", data.dim(1), weight.dim(1), s1, p1, d1)
    depth = _windows("depth", data.dim(2), weight.dim(2), s2, p2, d2)
    return result_spec(DType.F32, (width, height, depth, weight.dim(3) // c * (data.dim(3) // c)))


@op
def conv1d_dw(x: Spec, weight: Spec, s: int = 1, p: int = 0, d: int = 1) -> Spec:
    """A depthwise convolution along dimension 0: each channel of the receiver has its own kernel.

    y[t,c,n] = sum over i of weight[i,0,c] * x[t*s + i*d - p, c, n], where x outside [0, T) is 0.

    x is float (T, C, N), weight is float (K, 1, C); y is f32 (OT, C, N), always of three dimensions, with
    OT = (T + 2*p - d*(K-1) - 1) // s + 1. The rules for s, p and d, the edge cases and the precision are conv2d's.
    """
    require_float(x)
    require_float(weight, "the weight")
    require_rank(x, 3)
    fits = weight.dim(1) == weight.dim(3) == 1 and weight.dim(2) == x.dim(1)
    rule = "the weight must be (K, 1, {}), one kernel per channel, got {}"
    require(fits, rule, x.dim(1), list(weight.shape))
    windows = _windows("dimension 0", x.dim(0), weight.dim(0), s, p, d)
    return result_spec(DType.F32, (windows, x.dim(1), x.dim(2)))


@op
def avg_pool2d(x: Spec, k: int, s: int, p: float = 0.0) -> Spec:
    """The mean of each k by k window of dimensions 0 and 1, with stride s; padding counts as zeros.

    y[u,v,...] = sum over i,j in [0, k) of x[u*s + i - q, v*s + j - q, ...] / (k*k), where q = floor(p) and x outside
    of its extents is 0.

    x is float (W, H, ...); y is (OW, OH, ...) of x's dtype with OW = (W + 2*p - k) // s + 1, and OH likewise. Every
    sum is divided by k*k, also where the window lies partly or wholly in the padding. p is a multiple of 0.5: the half
    adds one element on the far side only, so p = 1.5 pads 1 before and 2 behind. k and s are at least 1, p at least 0,
    all at most 2^30, and k <= W + 2*p, likewise for the height. NaN or an infinity in a window affects its mean.
    """
    require_float(x)
    require(1 <= k <= _LIMIT, "the window k must be in [1, 2^30], got {}", k)
    require(1 <= s <= _LIMIT, "the stride s must be in [1, 2^30], got {}", s)
    rule = "the padding p must be a multiple of 0.5 in [0, 2^30], got {}"
    require(0 <= p <= _LIMIT and 2 * p == int(2 * p), rule, p)
    room = [x.dim(n) + int(2 * p) for n in (0, 1)]
    require(k <= min(room), "the window of {} by {} is larger than the padded data, {} by {}", k, k, *room)
    return result_spec(x.dtype, ((room[0] - k) // s + 1, (room[1] - k) // s + 1, *x.shape[2:]))


@op
def interpolate(x: Spec, dims: SizeAttrs, mode: Literal["nearest", "bilinear"] = "nearest") -> Spec:
    """The receiver resampled to the shape dims; y has x's dtype and the shape dims.

    With n the extent of a dimension of x, and m its extent in y:

    - nearest: y[i,...] = x[j,...] with j = i*n // m in exact integers, in every dimension. Values are moved
      unchanged.
    - bilinear: dimensions 2 and 3 as in nearest. In dimensions 0 and 1 an element's position is its centre: t = (i
      + 0.5)*n/m - 0.5, j = floor(t), f = t - j; along each of the two y is x[j]*(1-f) + x[j+1]*f, where j and
      j+1 are clamped to [0, n-1]. Shrinking does not average: there is no antialiasing filter.

    dims is the whole shape: at least as many extents as x has dimensions, at most 4. An extent of 0 gives an empty
    result; if x is empty, y must be empty, too. NaN and infinities affect the results in which their weight is above
    0; where their weight is 0, the result may become NaN or infinite, or not.
    """
    require_float(x)
    rule = "dims must be a whole shape of {} to {} extents, got {}"
    require(x.rank <= len(dims) <= MAX_RANK, rule, x.rank, MAX_RANK, dims)
    require(min(dims, default=0) >= 0, "dims must not be negative, got {}", dims)
    require(0 in dims or 0 not in x.shape, "an empty tensor cannot be resampled to {}", dims)
    return result_spec(x.dtype, tuple(dims))
