"""Elementwise ops, and the gated activations."""

from ..errors import DTypeError
from ..types.dtype import CONTRACT, DType
from ..types.spec import Spec, require, require_float, same_shape
from .op_declaration import op


def _float(x: Spec) -> Spec:
    require_float(x)
    return x


def _gated(x: Spec, up: Spec | None) -> Spec:
    require_float(x)
    if up is not None:
        require_float(up, "up")
        rule = "up must have the receiver's shape {}, got {}"
        require(same_shape(x.shape, up.shape), rule, x.shape, up.shape)
    return x


@op
def neg(x: Spec) -> Spec:
    """-x. The sign of a zero and of a NaN changes too."""
    return _float(x)


@op
def sqr(x: Spec) -> Spec:
    """x * x. Overflow gives infinity."""
    return _float(x)


@op
def sqrt(x: Spec) -> Spec:
    """The square root of x; NaN below zero, -0 stays -0."""
    return _float(x)


@op
def exp(x: Spec) -> Spec:
    """e to the power of x; overflow gives infinity, -infinity gives 0."""
    return _float(x)


@op
def sin(x: Spec) -> Spec:
    """The sine of x, in radians, however large x is; NaN for an infinity."""
    return _float(x)


@op
def cos(x: Spec) -> Spec:
    """The cosine of x, in radians, however large x is; NaN for an infinity."""
    return _float(x)


@op
def tanh(x: Spec) -> Spec:
    """The hyperbolic tangent of x; 1 at infinity, -1 at -infinity."""
    return _float(x)


@op
def sigmoid(x: Spec) -> Spec:
    """1 / (1 + exp(-x)); 0 at -infinity, 1 at infinity; only NaN gives NaN."""
    return _float(x)


@op
def relu(x: Spec, up: Spec | None = None) -> Spec:
    """max(x, 0); with up: max(x, 0) * up.

    up has x's shape. For NaN the result is NaN or 0.
    """
    return _gated(x, up)


@op
def silu(x: Spec, up: Spec | None = None) -> Spec:
    """x * sigmoid(x); with up: x * sigmoid(x) * up.

    up has x's shape. At -infinity the result is 0 or NaN.
    """
    return _gated(x, up)


@op
def gelu(x: Spec, up: Spec | None = None) -> Spec:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))), the tanh form; with up: times up.

    up has x's shape. At -infinity the result is 0 or NaN. A backend may round x to its declared activation type
    first, as ggml does on CPUs with a table for f16. Where 1 + tanh cancels, an error of a few last places of x may
    remain.
    """
    return _gated(x, up)


@op
def gelu_erf(x: Spec) -> Spec:
    """x/2 * (1 + erf(x / sqrt(2))), the exact form. At -infinity the result is 0 or NaN.

    Where 1 + erf cancels, an error of a few last places of x may remain.
    """
    return _float(x)


@op
def quick_gelu(x: Spec, up: Spec | None = None) -> Spec:
    """x * sigmoid(1.702 x); with up: times up.

    up has x's shape. At -infinity the result is 0 or NaN. The precision is gelu's.
    """
    return _gated(x, up)


@op
def swiglu(x: Spec, up: Spec, alpha: float, limit: float) -> Spec:
    """g * sigmoid(alpha * g) * (u + 1) with g = min(x, limit) and u = up clamped to [-limit, limit].

    up has x's shape. This is the gate of gpt-oss; the plain swiglu is silu(up).
    """
    require(limit >= 0, "limit must not be negative, got {}", limit)
    return _gated(x, up)


@op
def softplus(x: Spec) -> Spec:
    """log(1 + exp(x)), x itself for large x; 0 at -infinity.

    Where exp(x) is small, an error of a few last places of 1 may remain.
    """
    return _float(x)


@op
def clamp(x: Spec, min: float, max: float) -> Spec:
    """x, but at least min and at most max. Both bounds may be infinite. NaN gives NaN or one of the bounds."""
    require(min <= max, "min must not exceed max, got {} and {}", min, max)
    return _float(x)


@op
def scale(x: Spec, s: float) -> Spec:
    """x * s. A negative s changes the sign of zeros and NaN, too."""
    return _float(x)


@op
def fill(x: Spec, value: float) -> Spec:
    """A tensor of x's dtype and shape, with every element equal to value; x's data are not read.

    x is f32, f16, bf16, i32 or i64. For i32 and i64, value must be integral and within the range of the type.
    """
    if x.dtype.is_integer:
        bound = 2.0 ** (31 if x.dtype is DType.I32 else 63)
        require(value.is_integer() and -bound <= value < bound, "{} cannot hold {}", x.dtype, value)
        return x
    return _float(x)


@op
def cast(x: Spec, dtype: DType) -> Spec:
    """x converted to dtype, laid out contiguously.

    Floats are rounded to nearest, ties to even, and overflow to infinity. A float becomes an integer by dropping its
    fraction; NaN, infinities and numbers out of the integer's range give any value. An integer becomes the nearest
    float; past 2^31, and past 2^24 as f16 or bf16, one of the two nearest. Quantized types are read as the floats
    that they stand for. Casting to a quantized type needs whole blocks in dimension 0, and a backend that can
    quantize to it; each element of the result is at most one step of its block away from x.
    """
    if dtype not in CONTRACT:
        raise DTypeError(f"dtype must be one that tensors may hold, got {dtype}")
    rule = "dimension 0 of {} must be a multiple of {}, got {}"
    require(x.dim(0) % dtype.block_size == 0, rule, dtype, dtype.block_size, x.dim(0))
    return Spec(dtype, x.shape)
