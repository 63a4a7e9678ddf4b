"""Rows by number."""

from ..errors import DTypeError
from ..types.dtypes import DType
from ..types.spec import Spec, require, require_dtype, result_spec
from .declaration import op


@op(moves=True, ids="ids")
def rows(x: Spec, ids: Spec) -> Spec:
    """y[:,i,a,b] = x[:,ids[i,a,b],a,b]: the rows of x that ids name, quantized ones as the floats they stand for.

    x is (n, count, a, b) of any dtype but i64, ids is i32 (k, a, b); where dimension 2 or 3 of x is 1, it serves
    every a or b. y is (n, k, a, b), f32, or i32 from i32. Ids may repeat; each is in [0, count).
    """
    if x.dtype is DType.I64:
        raise DTypeError("the receiver must not be i64")
    require_dtype(ids, (DType.I32,), "ids")
    require(ids.dim(3) == 1, "ids must have at most 3 dimensions, got {}", list(ids.shape))
    for n in (2, 3):
        require(
            x.dim(n) in (1, ids.dim(n - 1)),
            "dimension {} must be 1 or that of ids, {} != {}",
            n,
            x.dim(n),
            ids.dim(n - 1),
        )
    return result_spec(
        DType.I32 if x.dtype is DType.I32 else DType.F32,
        (x.dim(0), *(ids.shape[:3] or (1,))),
    )
