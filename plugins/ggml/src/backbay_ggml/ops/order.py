"""Sorting along dimension 0."""

from __future__ import annotations

from math import inf

from backbay import DType, Node, ops

from ..library.abi import Ptr
from ..library.avoidance import NAN_IN_ORDER
from ..lowering.builder import GgmlBuilder, kernel
from .elementwise import clamp_copy

ASCENDING, DESCENDING = 0, 1


@kernel(ops.argsort)
def argsort(g: GgmlBuilder, x: Node) -> Ptr:
    return g.call("argsort", _comparable(g, x), ASCENDING)


@kernel(ops.top_k)
def top_k(g: GgmlBuilder, x: Node, k: int) -> Ptr:
    # ggml's own top_k gives its results in no order, and exchanges the first two on purpose.
    ids = g.call("argsort", _comparable(g, x), DESCENDING)
    ne = (k, *tuple(ids.ne)[1:])
    return g.call("cont", g.view(ids, DType.I32, ne, tuple(ids.nb), 0))


def _comparable(g: GgmlBuilder, x: Node) -> Ptr:
    """f32 without NaN, which makes std::sort leave its array; clamping turns NaN into infinity."""
    return clamp_copy(g, g.cast(g.raw(x), DType.F32), -inf, inf) if g.avoids(NAN_IN_ORDER) else g.floats(x)
