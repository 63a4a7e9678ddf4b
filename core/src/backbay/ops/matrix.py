"""Matrix products, dense and by expert."""

from functools import lru_cache

from ..errors import DTypeError
from ..types.dtype import DType
from ..types.spec import Spec, divides, require, require_dtype, require_float, result_spec, same_shape
from .op_declaration import op


def _weight(w: Spec) -> None:
    if w.dtype.is_integer:
        raise DTypeError(f"the receiver must be a float or a quantized type, got {w.dtype}")


def _product(w: Spec, x: Spec) -> Spec:
    _weight(w)
    require_float(x, "the second operand")
    return Spec(DType.F32, _product_shape(w.shape, x.shape))


@lru_cache(maxsize=4096)  # remembers shapes that passed, not shapes that raised
def _product_shape(w: tuple[int, ...], x: tuple[int, ...]) -> tuple[int, ...]:
    wide, other = (*w, 1, 1, 1, 1)[:4], (*x, 1, 1, 1, 1)[:4]
    require(wide[0] == other[0], "dimension 0 must match, {} != {}", wide[0], other[0])
    for n in (2, 3):
        rule = "dimension {} of the receiver must divide the other's, {} does not divide {}"
        require(divides(wide[n], other[n]), rule, n, wide[n], other[n])
    return result_spec(DType.F32, (wide[1], *x[1:])).shape


@op
def mulmat(w: Spec, x: Spec) -> Spec:
    """y[i,j,a,b] = sum over k of w[k,i,a//ra,b//rb] * x[k,j,a,b]: the dot products of w's rows and x's rows.

    w is (k, n, wa, wb) of any float or quantized type, x is (k, m, xa, xb) of any float type; y is f32
    (n, m, xa, xb), of x's rank. ra = xa / wa and rb = xb / wb must be integers: ra consecutive slices of x in
    dimension 2 (rb in dimension 3) share one slice of w. With k = 0 the result is 0. A backend may round x to the
    activation type that its `precision` declares, w to the declared weight type, and sum in the declared accumulation
    type.
    """
    return _product(w, x)


@op
def mulmat_full_prec(w: Spec, x: Spec) -> Spec:
    """mulmat, but sums are kept in f32 or better, whatever `precision` the backend declares for mulmat.

    Operands may still be rounded to the types that the backend declares for this op.
    """
    return _product(w, x)


@op(ids="ids", among=("w", 2))
def mulmat_id(w: Spec, x: Spec, ids: Spec) -> Spec:
    """y[i,u,t] = sum over k of w[k,i,ids[u,t]] * x[k, u mod m, t]: each token times its chosen experts.

    w is (k, n, experts) of any float or quantized type, x is float (k, m, tokens) with m = 1 or m = used, ids is i32
    (used, tokens); y is f32 (n, used, tokens). Every id is in [0, experts). A backend may round
    as in mulmat, by the precision that it declares for this op.
    """
    _weight(w)
    require_float(x, "the second operand")
    require_dtype(ids, (DType.I32,), "ids")
    used, tokens = ids.dim(0), ids.dim(1)
    require(w.dim(0) == x.dim(0), "dimension 0 must match, {} != {}", w.dim(0), x.dim(0))
    require(w.dim(3) == x.dim(3) == ids.dim(2) == ids.dim(3) == 1, "at most 3 dimensions, for ids at most 2")
    require(x.dim(2) == tokens, "dimension 2 must be the {} tokens of ids, got {}", tokens, x.dim(2))
    rule = "dimension 1 must be 1 or the {} used experts of ids, got {}"
    require(x.dim(1) in (1, used), rule, used, x.dim(1))
    return result_spec(DType.F32, (w.dim(1), used, tokens))


@op(ids="ids", among=("t2", 1))
def add_id(x: Spec, t2: Spec, ids: Spec) -> Spec:
    """y[i,u,t] = x[i,u,t] + t2[i,ids[u,t]]: each token plus the biases of its chosen experts.

    x is float (n, used, tokens), t2 is float (n, experts), ids is i32 (used, tokens); y has x's dtype and shape.
    Every id is in [0, experts).
    """
    require_float(x)
    require_float(t2, "the second operand")
    require_dtype(ids, (DType.I32,), "ids")
    require(x.dim(0) == t2.dim(0), "dimension 0 must match, {} != {}", x.dim(0), t2.dim(0))
    require(t2.dim(2) == t2.dim(3) == 1, "the second operand must have at most 2 dimensions")
    rule = "ids must be ({}, {}), got {}"
    require(same_shape((x.dim(1), x.dim(2), x.dim(3)), ids.shape), rule, x.dim(1), x.dim(2), list(ids.shape))
    return x
