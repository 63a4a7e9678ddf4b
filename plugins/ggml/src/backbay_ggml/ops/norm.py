"""Softmax and the norms, over dimension 0."""

from __future__ import annotations

from backbay import DType, Node, ops

from ..devices.known_faults import LARGE_MEAN
from ..library.abi import Ptr
from ..lowering.builder import GgmlBuilder, kernel


@kernel(ops.softmax)
def softmax(g: GgmlBuilder, x: Node) -> Ptr:
    return g.call("soft_max", g.floats(x))


@kernel(ops.rms_norm)
def rms_norm(g: GgmlBuilder, x: Node, weight: Node | None = None, eps: float = 1e-5) -> Ptr:
    normed = g.call("rms_norm", g.rows(x, DType.F32), eps)
    return normed if weight is None else g.call("mul", normed, g.floats(weight))


@kernel(ops.layer_norm)
def layer_norm(
    g: GgmlBuilder, x: Node, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Ptr:
    rows = g.rows(x, DType.F32)
    if g.fails(LARGE_MEAN):  # the device takes the variance for the difference of two large numbers
        rows = g.call("sub", rows, g.call("mean", rows))
    normed = g.call("norm", rows, eps)
    normed = normed if weight is None else g.call("mul", normed, g.floats(weight))
    return normed if bias is None else g.call("add", normed, g.floats(bias))


@kernel(ops.l2_norm)
def l2_norm(g: GgmlBuilder, x: Node, eps: float = 1e-12) -> Ptr:
    return g.call("l2_norm", g.rows(x, DType.F32), eps)
