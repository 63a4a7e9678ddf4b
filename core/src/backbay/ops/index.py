"""Selection of rows by index."""

from ..errors import DTypeError
from ..types.dtype import DType
from ..types.spec import Spec, require, require_dtype, result_spec
from .op_declaration import op


@op(moves=True, ids="ids")
def rows(x: Spec, ids: Spec) -> Spec:
    """y[:,i,a,b] = x[:,ids[i,a,b],a,b]: the rows of x with the numbers in ids.

    x is (n, count, a, b) of any dtype but i64; where its dimension 2 or 3 is 1, it is used for every a or b. ids is
    i32 (k, a, b); each id is in [0, count), and ids may repeat. y is (n, k, a, b), i32 if x is i32, else f32: the
    elements of a quantized x become the floats that they stand for.
    """
    if x.dtype is DType.I64:
        raise DTypeError("the receiver must not be i64")
    require_dtype(ids, (DType.I32,), "ids")
    require(ids.dim(3) == 1, "ids must have at most 3 dimensions, got {}", list(ids.shape))
    for n in (2, 3):
        rule = "dimension {} must be 1 or that of ids, {} != {}"
        require(x.dim(n) in (1, ids.dim(n - 1)), rule, n, x.dim(n), ids.dim(n - 1))
    dtype = DType.I32 if x.dtype is DType.I32 else DType.F32
    return result_spec(dtype, (x.dim(0), *(ids.shape[:3] or (1,))))
