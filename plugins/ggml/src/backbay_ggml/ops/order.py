"""Sorting along dimension 0."""

from __future__ import annotations

from math import inf

from backbay import DType, Node, ops

from ..library.abi import Ptr
from .builder import Builder
from .elementwise import clamped
from .kernel_table import kernel

ASCENDING, DESCENDING = 0, 1


@kernel(ops.argsort)
def argsort(g: Builder, x: Node) -> Ptr:
    return g.call("argsort", _comparable(g, x), ASCENDING)


@kernel(ops.top_k)
def top_k(g: Builder, x: Node, k: int) -> Ptr:
    # ggml's own top_k exchanges the first two on purpose, to show that it promises no order.
    ids = g.call("argsort", _comparable(g, x), DESCENDING)
    ne = (k, *tuple(ids.ne)[1:])
    return g.call("cont", g.view(ids, DType.I32, ne, tuple(ids.nb), 0))


def _comparable(g: Builder, x: Node) -> Ptr:
    """Without NaN, of which std::sort runs out of its array; clamping makes them infinite."""
    return clamped(g, g.cast(g.raw(x), DType.F32), -inf, inf)
