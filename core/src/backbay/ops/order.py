"""Sorting along dimension 0; ties come in any order, NaN anywhere."""

from ..types.dtypes import DType
from ..types.spec import Spec, require, require_float
from .arguments import SizeAttr
from .declaration import op


@op
def top_k(x: Spec, k: SizeAttr) -> Spec:
    """The positions of the k largest elements of each row, largest first, as i32: (n, ...) gives (k, ...).

    0 <= k <= n. Ties come in any order. Each position is in [0, n) and comes once; where a NaN is in a row, nothing
    else is said of its order.
    """
    require_float(x)
    require(0 <= k <= x.dim(0), "k must be in [0, {}], got {}", x.dim(0), k)
    return Spec(DType.I32, (k, *x.shape[1:]))


@op
def argsort(x: Spec) -> Spec:
    """The positions that sort each row, smallest first, as i32, in x's shape.

    Ties come in any order. Each position comes once; where a NaN is in a row, nothing else is said of its order.
    """
    require_float(x)
    return Spec(DType.I32, x.shape)
