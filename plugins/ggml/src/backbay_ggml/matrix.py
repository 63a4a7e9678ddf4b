"""Matrix products, dense and by expert."""

from __future__ import annotations

from backbay import DType, Node, ops

from .abi import Ptr
from .builder import Builder
from .table import kernel

FULL_PRECISION = 10  # of enum ggml_prec


@kernel(ops.mulmat)
def mulmat(g: Builder, w: Node, x: Node) -> Ptr:
    product = g.product(w)
    if product is not None and x.dim(3) == 1:
        return g.call("mul_mat", product, g.floats(x))
    return g.call("mul_mat", g.rows(w), activation(g, w, x))


@kernel(ops.mulmat_full_prec)
def mulmat_full_prec(g: Builder, w: Node, x: Node) -> Ptr:
    if w.dtype is DType.F16 and g.library.sums_in_half:
        product = g.call("mul_mat", g.rows(w, DType.F32), g.rows(x, DType.F32))
    else:
        product = mulmat(g, w, x)
    g.lib.ggml_mul_mat_set_prec(product, FULL_PRECISION)
    return product


@kernel(ops.mulmat_id)
def mulmat_id(g: Builder, w: Node, x: Node, ids: Node) -> Ptr:
    return g.call("mul_mat_id", g.rows(w), activation(g, w, x), g.raw(ids))


@kernel(ops.add_id)
def add_id(g: Builder, x: Node, t2: Node, ids: Node) -> Ptr:
    return g.call("add_id", g.floats(x), g.floats(t2), g.dense(ids))


def activation(g: Builder, w: Node, x: Node) -> Ptr:
    """The second operand of a product: as it is where the kernel takes that, else as f32."""
    taken = x.dtype is DType.F32 or x.dtype is g.library.activation(w.dtype)
    return g.rows(x, None if taken else DType.F32)
