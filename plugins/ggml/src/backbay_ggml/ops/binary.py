"""Arithmetic on two tensors, in f32."""

from __future__ import annotations

from typing import Any

from backbay import DType, Node, Op, ops

from ..library.abi import Ptr
from ..lowering.builder import GgmlBuilder, kernel


def _binary(op: Op[Any, Any]) -> None:
    @kernel(op)
    def lower(g: GgmlBuilder, x: Node, t2: Node) -> Ptr:
        return g.call(op.name, g.rows(x, DType.F32), g.rows(t2, DType.F32))


for _op in (ops.add, ops.sub, ops.mul, ops.div):
    _binary(_op)
