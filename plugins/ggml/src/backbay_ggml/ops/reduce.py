"""Sums and means over dimension 0."""

from __future__ import annotations

from typing import Any

from backbay import Node, Op, ops

from ..library.abi import Ptr
from ..lowering.builder import Builder, kernel


def _reduction(op: Op[Any, Any]) -> None:
    @kernel(op)
    def lower(g: Builder, x: Node) -> Ptr:
        return g.call(op.name, g.floats(x))


for _op in (ops.sum_rows, ops.mean, ops.cumsum):
    _reduction(_op)
