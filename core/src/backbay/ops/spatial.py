"""Convolutions, pooling and resampling: dimension 0 is width, 1 height and, in conv3d, 2 depth."""

from typing import Literal

from ..types.dtypes import DType
from ..types.spec import MAX_RANK, Spec, require, require_float, require_rank, result_spec
from .arguments import SizeAttrs
from .declaration import op

_LIMIT = 1 << 30  # C code holds strides, paddings and dilations in 32 bits, and doubles a padding


def _windows(along: str, extent: int, kernel: int, s: int, p: int, d: int) -> int:
    """How many windows of a kernel fit into a padded extent."""
    require(kernel >= 1, "the kernel is empty along {}", along)
    require(1 <= s <= _LIMIT, "the stride along {} must be in [1, 2^30], got {}", along, s)
    require(0 <= p <= _LIMIT, "the padding along {} must be in [0, 2^30], got {}", along, p)
    require(1 <= d <= _LIMIT, "the dilation along {} must be in [1, 2^30], got {}", along, d)
    reach, room = d * (kernel - 1) + 1, extent + 2 * p
    require(
        reach <= room, "along {} the kernel spans {}, more than the {} of the padded data", along, reach, room
    )
    return (room - reach) // s + 1


def _planes(
    weight: Spec, data: Spec, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> tuple[int, int]:
    """The width and height of a two-dimensional convolution, its operands checked."""
    require_float(weight)
    require_float(data, "the data")
    require(
        weight.dim(2) == data.dim(2),
        "dimension 2, the input channels, must match, {} != {}",
        weight.dim(2),
        data.dim(2),
    )
    return (
        _windows("width", data.dim(0), weight.dim(0), s0, p0, d0),
        _windows("height", data.dim(1), weight.dim(1), s1, p1, d1),
    )


@op
def conv2d(
    weight: Spec, data: Spec, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
) -> Spec:
    """The receiver's kernels slid over images as neural networks mean it: a cross-correlation, nothing is flipped.

    y[x,y,o,n] = sum over i,j,c of weight[i,j,c,o] * data[x*s0 + i*d0 - p0, y*s1 + j*d1 - p1, c, n],
    where data outside [0, W) and [0, H) is the number 0.

    weight is float (KW, KH, IC, OC), data is float (W, H, IC, N); y is f32 (OW, OH, OC, N), always of four
    dimensions, with OW = (W + 2*p0 - d0*(KW-1) - 1) // s0 + 1 and OH alike. Strides s and dilations d are at
    least 1, paddings p at least 0, none above 2^30. The kernel must fit: d0*(KW-1) + 1 <= W + 2*p0, KW >= 1,
    height alike. OC = 0 or N = 0 gives nothing, IC = 0 gives zeros; W = 0 is data that is all padding. A
    value that is not finite follows IEEE arithmetic in every window that holds it and reaches no other; where
    it meets a weight of 0, or an infinite weight meets padding, the result may or may not be NaN. A backend may
    round data to the activation type and sum in the type that its `precision` declares.
    """
    width, height = _planes(weight, data, s0, s1, p0, p1, d0, d1)
    return result_spec(DType.F32, (width, height, weight.dim(3), data.dim(3)))


@op
def im2col(
    weight: Spec, data: Spec, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
) -> Spec:
    """The windows that conv2d would weigh, each laid out as one row; of the receiver only the shape counts.

    y[i + KW*(j + KH*c), x, y, n] = data[x*s0 + i*d0 - p0, y*s1 + j*d1 - p1, c, n], and 0 outside [0, W) and
    [0, H).

    weight is float (KW, KH, IC, OC), data is float (W, H, IC, N); y is (KW*KH*IC, OW, OH, N) of data's dtype,
    always of four dimensions. OW, OH and the rules for strides, paddings, dilations and empty dimensions are
    conv2d's. Values are moved, not computed: every one of data's, NaN and infinities too, arrives unchanged.
    """
    width, height = _planes(weight, data, s0, s1, p0, p1, d0, d1)
    return result_spec(
        data.dtype, (weight.dim(0) * weight.dim(1) * weight.dim(2), width, height, data.dim(3))
    )


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
    """conv2d with a depth; channels share dimension 3 with their kernels and images, channels innermost.

    y[x,y,z,o + OC*n] = sum over i,j,k,a in [0, c) of weight[i,j,k,a + c*o] * data[x*s0 + i*d0 - p0, y*s1 +
    j*d1 - p1, z*s2 + k*d2 - p2, a + c*n], 0 outside data.

    weight is float (KW, KH, KD, c*OC), data is float (W, H, D, c*N); y is f32 (OW, OH, OD, OC*N), always of
    four dimensions. c is at least 1 and divides dimension 3 of both. OW, OH, OD, the rules for strides,
    paddings and dilations, the edges and the precision are conv2d's.
    """
    require_float(weight)
    require_float(data, "the data")
    require(c >= 1, "c, the input channels, must be at least 1, got {}", c)
    require(
        weight.dim(3) % c == 0, "dimension 3 must be a multiple of the {} channels, got {}", c, weight.dim(3)
    )
    require(
        data.dim(3) % c == 0,
        "dimension 3 of the data must be a multiple of the {} channels, got {}",
        c,
        data.dim(3),
    )
    width = _windows("width", data.dim(0), weight.dim(0), s0, p0, d0)
    height = _windows("height", data.dim(1), weight.dim(1), s1, p1, d1)
    depth = _windows("depth", data.dim(2), weight.dim(2), s2, p2, d2)
    return result_spec(DType.F32, (width, height, depth, weight.dim(3) // c * (data.dim(3) // c)))


@op
def conv1d_dw(x: Spec, weight: Spec, s: int = 1, p: int = 0, d: int = 1) -> Spec:
    """A depthwise convolution along dimension 0: each channel of the receiver with a kernel of its own.

    y[t,c,n] = sum over i of weight[i,0,c] * x[t*s + i*d - p, c, n], where x outside [0, T) is the number 0.

    x is float (T, C, N), weight is float (K, 1, C); y is f32 (OT, C, N), always of three dimensions, with
    OT = (T + 2*p - d*(K-1) - 1) // s + 1. The rules for s, p and d, the edges and the precision are conv2d's.
    """
    require_float(x)
    require_float(weight, "the weight")
    require_rank(x, 3)
    require(
        weight.dim(1) == weight.dim(3) == 1 and weight.dim(2) == x.dim(1),
        "the weight must be (K, 1, {}), one kernel per channel, got {}",
        x.dim(1),
        list(weight.shape),
    )
    return result_spec(
        DType.F32, (_windows("dimension 0", x.dim(0), weight.dim(0), s, p, d), x.dim(1), x.dim(2))
    )


@op
def avg_pool2d(x: Spec, k: int, s: int, p: float = 0.0) -> Spec:
    """The mean of each k by k window of dimensions 0 and 1, windows s apart; padding counts as zeros in it.

    y[u,v,...] = sum over i,j in [0, k) of x[u*s + i - q, v*s + j - q, ...] / (k*k), 0 outside x, with q =
    floor(p).

    x is float (W, H, ...); y is (OW, OH, ...) of x's dtype with OW = (W + 2*p - k) // s + 1, OH alike. Every
    sum is divided by k*k, also where the window lies partly or wholly in the padding. p is a multiple of 0.5:
    half an element more means one more on the far side alone, so p = 1.5 pads 1 before and 2 behind. k and s
    are at least 1, p at least 0, none above 2^30, and k <= W + 2*p, height alike. NaN or an infinity in a
    window reaches its mean.
    """
    require_float(x)
    require(1 <= k <= _LIMIT, "the window k must be in [1, 2^30], got {}", k)
    require(1 <= s <= _LIMIT, "the stride s must be in [1, 2^30], got {}", s)
    require(
        0 <= p <= _LIMIT and 2 * p == int(2 * p),
        "the padding p must be a multiple of 0.5 in [0, 2^30], got {}",
        p,
    )
    room = [x.dim(n) + int(2 * p) for n in (0, 1)]
    require(k <= min(room), "the window of {} by {} is larger than the padded data, {} by {}", k, k, *room)
    return result_spec(x.dtype, ((room[0] - k) // s + 1, (room[1] - k) // s + 1, *x.shape[2:]))


@op
def interpolate(x: Spec, dims: SizeAttrs, mode: Literal["nearest", "bilinear"] = "nearest") -> Spec:
    """The receiver resampled to the shape dims; y has x's dtype and dims as its shape.

    With n the extent of a dimension of x and m that of y:

    - nearest: y[i,...] = x[j,...] with j = i*n // m in exact integers, in every dimension. Values are moved
      unchanged.
    - bilinear: dimensions 2 and 3 as nearest. In dimensions 0 and 1 pixels are taken at their centres: t = (i
      + 0.5)*n/m - 0.5, j = floor(t), f = t - j; along each of the two y is x[j]*(1-f) + x[j+1]*f, where j and
      j+1 are clamped to [0, n-1]. Shrinking does not average: it is no antialiasing filter.

    dims holds the whole shape: at least as many extents as x has dimensions, at most 4. An extent of 0 gives
    nothing; where x is empty, y must be. NaN and infinities reach what they have a weight above 0 in; what
    they have a weight of 0 in they may or may not make NaN or infinite.
    """
    require_float(x)
    require(
        x.rank <= len(dims) <= MAX_RANK,
        "dims must be a whole shape of {} to {} extents, got {}",
        x.rank,
        MAX_RANK,
        dims,
    )
    require(min(dims, default=0) >= 0, "dims must not be negative, got {}", dims)
    require(0 in dims or 0 not in x.shape, "nothing cannot be resampled to {}", dims)
    return result_spec(x.dtype, tuple(dims))
