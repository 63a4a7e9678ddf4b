"""Softmax, the norms and the reductions, over dimension 0."""

from __future__ import annotations

from typing import Any

from backbay import DType, Node, Op, ops

from ..library.abi import Ptr
from .builder import Builder
from .kernel_table import kernel


def _reduction(op: Op[Any, Any], name: str) -> None:
    @kernel(op)
    def lower(g: Builder, x: Node) -> Ptr:
        return g.call(name, g.floats(x))


_reduction(ops.softmax, "soft_max")
_reduction(ops.sum_rows, "sum_rows")
_reduction(ops.mean, "mean")
_reduction(ops.cumsum, "cumsum")


@kernel(ops.rms_norm)
def rms_norm(g: Builder, x: Node, weight: Node | None = None, eps: float = 1e-5) -> Ptr:
    normed = g.call("rms_norm", g.rows(x, DType.F32), eps)
    return normed if weight is None else g.call("mul", normed, g.floats(weight))


@kernel(ops.layer_norm)
def layer_norm(
    g: Builder, x: Node, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Ptr:
    normed = g.call("norm", g.rows(x, DType.F32), eps)
    normed = normed if weight is None else g.call("mul", normed, g.floats(weight))
    return normed if bias is None else g.call("add", normed, g.floats(bias))


@kernel(ops.l2_norm)
def l2_norm(g: Builder, x: Node, eps: float = 1e-12) -> Ptr:
    return g.call("l2_norm", g.rows(x, DType.F32), eps)
