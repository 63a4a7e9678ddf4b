"""Matrix products, dense and by expert."""

from __future__ import annotations

from backbay import DType, Node, ops

from ..devices.fault_cases import PRODUCT_NAN, REPEATED_IDS
from ..library.abi import FULL_PRECISION, Ptr, owner
from ..lowering.builder import Builder
from ..lowering.products import activation, mul_mat, multiply
from .kernel_table import kernel


@kernel(ops.mulmat)
def mulmat(g: Builder, w: Node, x: Node) -> Ptr:
    return multiply(g, w, x, full=False)


@kernel(ops.mulmat_full_prec)
def mulmat_full_prec(g: Builder, w: Node, x: Node) -> Ptr:
    if w.dtype is not DType.F16 or not g.library.sums_in_half:
        return multiply(g, w, x, full=True)
    return mul_mat(g, g.rows(w, DType.F32), g.rows(x, DType.F32), full=True)


@kernel(ops.mulmat_id)
def mulmat_id(g: Builder, w: Node, x: Node, ids: Node) -> Ptr:
    experts, columns, chosen = g.rows(w), activation(g, w, x), g.raw(ids)
    if not g.on_cpu:
        # Vulkan's code reads all ids as if they adjoined, ends the process at columns that do not adjoin, and rounds experts
        # that do not adjoin to f16.
        experts, columns, chosen = g.contiguous(experts), g.contiguous(columns), g.with_rows(chosen)
    used, tokens = chosen.ne[0], chosen.ne[1]
    if ids.op is ops.top_k or used == 1 or not g.fails(REPEATED_IDS):
        return _by_experts(g, experts, columns, chosen)
    # Each pair of a token and an id becomes a token with one id.
    inner, pairs = columns.ne[0], used * tokens
    columns = g.reshape(g.call("repeat_4d", columns, inner, used, tokens, 1), inner, 1, pairs)
    made = _by_experts(g, experts, columns, g.reshape(g.contiguous(chosen), 1, pairs))
    return g.reshape(made, made.ne[0], used, tokens)


def _by_experts(g: Builder, experts: Ptr, columns: Ptr, ids: Ptr) -> Ptr:
    made = g.call("mul_mat_id", experts, columns, ids)
    if g.fails(PRODUCT_NAN):  # Vulkan's code heeds this for experts in f16 alone
        made.op_params[0] = FULL_PRECISION
    return made


@kernel(ops.add_id)
def add_id(g: Builder, x: Node, t2: Node, ids: Node) -> Ptr:
    rows = g.floats(t2)
    if rows.op:  # keep ggml from writing the result over rows that it still reads
        g.lib.ggml_set_output(owner(rows))
    return g.call("add_id", g.floats(x), rows, g.dense(ids))
