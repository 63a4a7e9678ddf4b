"""Ops on each element alone, and the gated activations."""

from ..errors import DTypeError
from ..types.dtypes import CONTRACT, DType
from ..types.spec import Spec, require, require_float, same_shape
from .declaration import op


def _float(x: Spec) -> Spec:
    require_float(x)
    return x


def _gated(x: Spec, up: Spec | None) -> Spec:
    require_float(x)
    if up is not None:
        require_float(up, "up")
        require(
            same_shape(x.shape, up.shape), "up must have the receiver's shape {}, got {}", x.shape, up.shape
        )
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
    """e to the power of x; infinity where it overflows, 0 for -infinity."""
    return _float(x)


@op
def sin(x: Spec) -> Spec:
    """The sine of x, in radians; NaN for an infinity."""
    return _float(x)


@op
def cos(x: Spec) -> Spec:
    """The cosine of x, in radians; NaN for an infinity."""
    return _float(x)


@op
def tanh(x: Spec) -> Spec:
    """The hyperbolic tangent of x; 1 and -1 at the infinities."""
    return _float(x)


@op
def sigmoid(x: Spec) -> Spec:
    """1 / (1 + exp(-x)); 0 and 1 at the infinities, never NaN but for NaN."""
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

    up has x's shape. At -infinity the result is 0 or NaN. A backend may round x to f16 first, as ggml's table
    on CPUs does, if its declared precision says so.
    """
    return _gated(x, up)


@op
def gelu_erf(x: Spec) -> Spec:
    """x/2 * (1 + erf(x / sqrt(2))), the exact form. At -infinity the result is 0 or NaN."""
    return _float(x)


@op
def quick_gelu(x: Spec, up: Spec | None = None) -> Spec:
    """x * sigmoid(1.702 x); with up: times up.

    up has x's shape. At -infinity the result is 0 or NaN. The same freedom in precision as gelu.
    """
    return _gated(x, up)


@op
def swiglu(x: Spec, up: Spec, alpha: float, limit: float) -> Spec:
    """g * sigmoid(alpha * g) * (u + 1) with g = min(x, limit) and u = up clamped to [-limit, limit].

    up has x's shape. This is the gate of gpt-oss; the plain one is silu(up).
    """
    require(limit >= 0, "limit must not be negative, got {}", limit)
    return _gated(x, up)


@op
def softplus(x: Spec) -> Spec:
    """log(1 + exp(x)), which is x itself for large x; 0 at -infinity."""
    return _float(x)


@op
def clamp(x: Spec, min: float, max: float) -> Spec:
    """x, but at least min and at most max; either may be infinite. NaN gives NaN or one of the bounds."""
    require(min <= max, "min must not exceed max, got {} and {}", min, max)
    return _float(x)


@op
def scale(x: Spec, s: float) -> Spec:
    """x * s. A negative s turns the signs of zeros and NaN as well."""
    return _float(x)


@op
def fill(x: Spec, value: float) -> Spec:
    """A tensor of x's dtype and shape with value everywhere; x's data are not read.

    x is f32, f16, bf16, i32 or i64; an integer type takes an integral value that it can hold.
    """
    if x.dtype.is_integer:
        bound = 2.0 ** (31 if x.dtype is DType.I32 else 63)
        require(value.is_integer() and -bound <= value < bound, "{} cannot hold {}", x.dtype, value)
        return x
    return _float(x)


@op
def cast(x: Spec, dtype: DType) -> Spec:
    """x converted to dtype, laid out contiguously.

    Floats round to nearest, ties to even, and overflow to infinity. A float becomes an integer by dropping its
    fraction; NaN, infinities and what the integer cannot hold give any value. Quantized types are read as the
    floats that they stand for. Casting to a quantized type needs whole blocks in dimension 0, and a backend
    that can quantize it; each element then stands for a number at most a step of its block away.
    """
    if dtype not in CONTRACT:
        raise DTypeError(f"dtype must be one that tensors may hold, got {dtype}")
    require(
        x.dim(0) % dtype.block_size == 0,
        "dimension 0 of {} must be a multiple of {}, got {}",
        dtype,
        dtype.block_size,
        x.dim(0),
    )
    return Spec(dtype, x.shape)
