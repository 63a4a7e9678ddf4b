"""Arithmetic on two tensors; the second operand is repeated to the shape of the first."""

from ..types.spec import Spec, divides, require, require_float
from .op_declaration import op


def _repeated(x: Spec, t2: Spec) -> Spec:
    require_float(x)
    require_float(t2, "the second operand")
    if x.shape != t2.shape:
        for n in range(max(x.rank, t2.rank)):
            rule = "dimension {} must repeat to the first operand's, {} does not divide {}"
            require(divides(t2.dim(n), x.dim(n)), rule, n, t2.dim(n), x.dim(n))
    return x


@op
def add(x: Spec, t2: Spec) -> Spec:
    """x + t2, with t2 repeated to x's shape: index i of a dimension reads index i mod n of t2, with n its extent in t2.

    Each extent of t2 divides that of x. The result has x's dtype and shape; the sum is rounded to the dtype once.
    Infinities of opposite sign give NaN.
    """
    return _repeated(x, t2)


@op
def sub(x: Spec, t2: Spec) -> Spec:
    """x - t2, with t2 repeated as in add. The result has x's dtype and shape."""
    return _repeated(x, t2)


@op
def mul(x: Spec, t2: Spec) -> Spec:
    """x * t2, with t2 repeated as in add. The result has x's dtype and shape; 0 times infinity is NaN."""
    return _repeated(x, t2)


@op
def div(x: Spec, t2: Spec) -> Spec:
    """x / t2, with t2 repeated as in add. The result has x's dtype and shape.

    Division by zero gives an infinity with the sign of the quotient; 0 / 0 is NaN.
    """
    return _repeated(x, t2)
