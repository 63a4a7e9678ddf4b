"""Sorting along dimension 0; the order of ties and the place of NaN are not specified."""

from ..types.dtype import DType
from ..types.spec import Spec, require, require_float
from .op_declaration import SizeAttr, op


@op
def top_k(x: Spec, k: SizeAttr) -> Spec:
    """The positions of the k largest elements of each row, largest first, as i32: (n, ...) gives (k, ...).

    0 <= k <= n. Ties come in any order. Positions are in [0, n) and differ from each other; for a row with a NaN
    nothing else is specified.
    """
    require_float(x)
    require(0 <= k <= x.dim(0), "k must be in [0, {}], got {}", x.dim(0), k)
    return Spec(DType.I32, (k, *x.shape[1:]))


@op
def argsort(x: Spec) -> Spec:
    """The positions that sort each row, smallest element first, as i32, in x's shape.

    Ties come in any order. Each position comes once; for a row with a NaN nothing else is specified.
    """
    require_float(x)
    return Spec(DType.I32, x.shape)
