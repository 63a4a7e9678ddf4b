"""Sums and moments over dimension 0, which stays, with an extent of 1."""

from ..types.spec import Spec, require_float
from .op_declaration import op


def _reduced(x: Spec) -> Spec:
    require_float(x)
    return Spec(x.dtype, (1, *x.shape[1:]))


@op
def sum_rows(x: Spec) -> Spec:
    """The sum over dimension 0, kept in f32 or better: (n, ...) gives (1, ...). The sum of an empty row is 0."""
    return _reduced(x)


@op
def mean(x: Spec) -> Spec:
    """The mean over dimension 0, summed in f32 or better: (n, ...) gives (1, ...). The mean of an empty row is NaN."""
    return _reduced(x)


@op
def variance(x: Spec) -> Spec:
    """mean((x - mean(x))^2) over dimension 0, divided by N: (n, ...) gives (1, ...). An empty row gives NaN."""
    return _reduced(x)


@op
def stddev(x: Spec) -> Spec:
    """The square root of the variance: (n, ...) gives (1, ...)."""
    return _reduced(x)


@op
def cumsum(x: Spec) -> Spec:
    """y[i] = x[0] + ... + x[i] along dimension 0, kept in f32 or better; y has x's dtype and shape."""
    require_float(x)
    return x
