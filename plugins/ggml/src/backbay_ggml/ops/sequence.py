"""Rotary embeddings and state-space models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from backbay import DType, Node, ops
from backbay.ops import Yarn

from ..library.abi import NULL, Ptr, ffi
from ..lowering.builder import Builder
from .kernel_table import kernel

MODES = {"normal": 0, "neox": 2, "multi-section": 8, "vision": 24}


@kernel(ops.rope)
def rope(
    g: Builder,
    x: Node,
    positions: Node,
    dim: int,
    base: float,
    scale: float = 1.0,
    mode: Literal["normal", "neox", "multi-section", "vision"] = "normal",
    factors: Node | None = None,
    sections: Sequence[int] = (0, 0, 0, 0),
    yarn: Yarn | None = None,
) -> Ptr:
    yarn = yarn or Yarn(0, 0.0, 1.0, 32.0, 1.0)
    tail = (int(yarn.n_ctx_orig) & 0x7FFFFFFF, base, scale, *yarn[1:])
    operands = (g.rows(x, DType.F32), g.dense(positions), _factors(g, x, factors), dim)
    if mode in ("multi-section", "vision"):
        return g.call("rope_multi", *operands, list(sections), MODES[mode], *tail)
    return g.call("rope_ext", *operands, MODES[mode], *tail)


def _factors(g: Builder, x: Node, factors: Node | None) -> Ptr:
    """A factor for each pair of the head: ggml also reads factors of pairs that it does not rotate."""
    if factors is None:
        return NULL
    missing = x.dim(0) // 2 - factors.dim(0)
    given = g.floats(factors)
    return given if missing <= 0 else g.call("pad_ext", given, 0, missing, 0, 0, 0, 0, 0, 0)


@kernel(ops.ssm_conv)
def ssm_conv(g: Builder, x: Node, weight: Node) -> Ptr:
    return g.call("ssm_conv", g.floats(x), g.floats(weight))


@kernel(ops.ssm_scan)
def ssm_scan(g: Builder, s: Node, x: Node, dt: Node, A: Node, B: Node, C: Node, ids: Node) -> Ptr:
    if x.dim(2) == 0:
        states = g.reshape(g.floats(s), s.dim(0) * s.dim(1) * s.dim(2), s.dim(3))
        picked = g.call("get_rows", states, g.dense(ids))
        return g.reshape(picked, states.ne[0] * ids.dim(0))
    operands = (*(g.floats(operand) for operand in (s, x, dt, A, B, C)), g.dense(ids))
    function: Any = ffi.addressof(g.lib, "ggml_ssm_scan")
    if g.library.number < (0, 20):
        made = ffi.cast("ssm_scan_before_0_20", function)(g.pool(), *operands)
    else:
        made = ffi.cast("ssm_scan_since_0_20", function)(g.pool(), *operands, 1)
    return g.added(made)
