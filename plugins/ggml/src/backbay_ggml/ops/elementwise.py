"""Ops on single elements, and gated activations."""

from __future__ import annotations

from typing import Any

from backbay import DType, Node, Op, ops

from ..library.abi import Ptr
from ..lowering.builder import GgmlBuilder, kernel
from ..tensors.tensor_builder import four_dimensions

REGLU, GEGLU, SWIGLU, GEGLU_QUICK = 0, 1, 2, 5  # of enum ggml_glu_op
UNARY = (
    ops.neg,
    ops.sqr,
    ops.sqrt,
    ops.exp,
    ops.sin,
    ops.cos,
    ops.tanh,
    ops.sigmoid,
    ops.gelu_erf,
    ops.softplus,
)
MINUS_ZERO = -(1 << 31)  # the bits of an f32


def unary(op: Op[Any, Any]) -> None:
    """The kernel of an op that ggml has under its name."""

    @kernel(op)
    def lower(g: GgmlBuilder, x: Node) -> Ptr:
        return g.call(op.name, g.floats(x))


for _op in UNARY:
    unary(_op)


def _gated(op: Op[Any, Any], name: str, gate: int) -> None:
    @kernel(op)
    def lower(g: GgmlBuilder, x: Node, up: Node | None = None) -> Ptr:
        if up is None:
            return g.call(name, g.floats(x))
        return g.call("glu_split", _matrix(g, x), _matrix(g, up), gate)


def _matrix(g: GgmlBuilder, x: Node) -> Ptr:
    """A node's tensor as f32; the rows of a matrix need not adjoin."""
    return g.rows(x, DType.F32) if four_dimensions(x)[2:] == (1, 1) else g.floats(x)


_gated(ops.relu, "relu", REGLU)
_gated(ops.silu, "silu", SWIGLU)
_gated(ops.gelu, "gelu", GEGLU)
_gated(ops.quick_gelu, "gelu_quick", GEGLU_QUICK)


@kernel(ops.swiglu)
def swiglu(g: GgmlBuilder, x: Node, up: Node, alpha: float, limit: float) -> Ptr:
    return g.call("swiglu_oai", g.floats(x), g.reshape(g.floats(up), *four_dimensions(x)), alpha, limit)


@kernel(ops.clamp)
def clamp(g: GgmlBuilder, x: Node, min: float, max: float) -> Ptr:
    return clamp_copy(g, g.cast(g.raw(x), DType.F32), min, max)


def clamp_copy(g: GgmlBuilder, x: Ptr, min: float, max: float) -> Ptr:
    """A clamped copy: old versions clamp in place."""
    return g.call("clamp", g.call("cont", x), min, max)


@kernel(ops.scale)
def scale(g: GgmlBuilder, x: Node, s: float) -> Ptr:
    scaled = g.call("scale", g.floats(x), s)
    scaled.op_params[1] = MINUS_ZERO  # what devices add: with ggml's 0, a product of -0 becomes 0
    return scaled


@kernel(ops.fill)
def fill(g: GgmlBuilder, x: Node, value: float) -> Ptr:
    return g.full(x.dtype, four_dimensions(x), value)


@kernel(ops.cast)
def cast(g: GgmlBuilder, x: Node, dtype: DType) -> Ptr:
    return g.call("cont", g.raw(x)) if x.dtype is dtype else g.cast(g.raw(x), dtype)
