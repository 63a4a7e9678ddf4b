"""Linear algebra over dimensions 0 and 1: diagonals, triangles and triangular systems."""

from typing import Literal

from ..types.dtype import DType
from ..types.spec import Spec, require, require_float, result_spec, same_shape
from .op_declaration import op


def _square(a: Spec) -> None:
    require(a.dim(0) == a.dim(1), "dimensions 0 and 1 must be equal, {} != {}", a.dim(0), a.dim(1))


@op
def diag(x: Spec) -> Spec:
    """Square matrices with the rows of x as their diagonals: y[i,j,...] = x[i,0,...] where i = j, else 0.

    x is float (n,) or (n, 1, ...); y is (n, n, ...) of x's dtype. Values are moved unchanged; elements off the
    diagonal are 0, whatever x holds. n = 0 gives an empty result.
    """
    require_float(x)
    require(x.dim(1) == 1, "dimension 1 must be 1, got {}; use reshape", x.dim(1))
    return result_spec(x.dtype, (x.dim(0), x.dim(0), *x.shape[2:]))


@op
def tri(x: Spec, kind: Literal["upper-diag", "upper", "lower-diag", "lower"]) -> Spec:
    """One triangle of each square matrix; the other elements become 0.

    y[i,j,...] = x[i,j,...] where the kind keeps the element, else 0; i is the column, j the row. Kinds keep:
    lower-diag i <= j, lower i < j, upper-diag i >= j, upper i > j.

    x is float (n, n, ...); y has its dtype and shape. Kept values are moved unchanged; other elements are 0, also
    where x holds NaN or an infinity.
    """
    require_float(x)
    _square(x)
    return x


@op
def solve_tri(a: Spec, b: Spec, lower: bool = True, left: bool = True, unit_diagonal: bool = False) -> Spec:
    """Solve A X = B, or X A = B if left=False, for X, where A is triangular.

    In A[i,t], i counts rows, along dimension 1, and t counts columns, along dimension 0. With left=True, for every row
    i in order: X[i] = (B[i] - sum over t < i of A[i,t] * X[t]) / A[i,i]. With lower=False, rows are solved from the
    last one on, and the sum is over t > i. X A = B is solved as transpose(A) transpose(X) = transpose(B), where lower
    and upper change places.

    a is float (n, n, p, q), the receiver; b is float (m, n, p, q), or (n, m, p, q) with left=False; X is f32 of b's
    shape. Dimensions 2 and 3 of a and b must be equal. Only the triangle that `lower` names is read; with
    unit_diagonal, the diagonal of A is not read and counts as 1. A 0 on the diagonal divides by zero: by IEEE
    arithmetic its row, and the rows solved after it, become infinities or NaN. n = 0 or m = 0 gives an empty result.
    A NaN in a column of B (with left=False: in a row) affects only this column (row) of X.
    """
    require_float(a)
    require_float(b, "the second operand")
    _square(a)
    shared = 1 if left else 0
    rule = "dimension {} of the second operand must be {}, got {}"
    require(b.dim(shared) == a.dim(0), rule, shared, a.dim(0), b.dim(shared))
    rule = "dimensions 2 and 3 must match, {} != {}"
    require(same_shape(a.shape[2:], b.shape[2:]), rule, list(a.shape[2:]), list(b.shape[2:]))
    return Spec(DType.F32, b.shape)
