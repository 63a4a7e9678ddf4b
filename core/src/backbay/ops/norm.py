"""Softmax and norms over dimension 0."""

from ..types.spec import Spec, require, require_float, same_shape
from .op_declaration import op


def _per_column(x: Spec, weight: Spec | None, name: str) -> None:
    if weight is not None:
        require_float(weight, name)
        if weight.shape == x.shape[:1]:
            return
        rule = "{} must have shape ({},), got {}"
        require(same_shape(weight.shape, (x.dim(0),)), rule, name, x.dim(0), list(weight.shape))


@op
def softmax(x: Spec) -> Spec:
    """exp(x - m) / (sum of exp(x - m) over dimension 0), where m is the largest element of the row.

    A row in which all elements are -infinity gives NaN, and so does a row with a NaN or +infinity. Other rows are not
    affected.
    """
    require_float(x)
    return x


@op
def layer_norm(x: Spec, weight: Spec | None = None, bias: Spec | None = None, eps: float = 1e-5) -> Spec:
    """(x - mean) / sqrt(variance + eps), then times weight, plus bias; mean and variance are over dimension 0.

    The variance divides by N. weight and bias have shape (x.dim(0),). Sums are kept in f32 or better.
    """
    require_float(x)
    _per_column(x, weight, "weight")
    _per_column(x, bias, "bias")
    require(eps >= 0, "eps must not be negative, got {}", eps)
    return x


@op
def rms_norm(x: Spec, weight: Spec | None = None, eps: float = 1e-5) -> Spec:
    """x / sqrt((mean of x^2 over dimension 0) + eps), then times weight.

    weight has shape (x.dim(0),). The mean is kept in f32 or better. With eps = 0 a row of zeros gives NaN.
    """
    require_float(x)
    _per_column(x, weight, "weight")
    require(eps >= 0, "eps must not be negative, got {}", eps)
    return x


@op
def l2_norm(x: Spec, eps: float = 1e-12) -> Spec:
    """x / max(sqrt(sum of x^2 over dimension 0), eps). The sum is kept in f32 or better."""
    require_float(x)
    require(eps >= 0, "eps must not be negative, got {}", eps)
    return x
