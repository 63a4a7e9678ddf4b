"""Lowers the nodes of a checked graph to ggml's ops, in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan, prod
from typing import Any

from backbay import Graph, Node, Op, UnsupportedOpError, ops

from ..library.abi import Ptr
from ..tensors.layouts import LARGEST, LONGEST, four
from .builder import Builder

Calls = Mapping[Op[Any, Any], Callable[..., Ptr]]
"""Kernels by op, as functions of the builder and the arguments of a node."""

WHEN_EMPTY: dict[Op[Any, Any], float] = {
    ops.mulmat: 0.0,
    ops.mulmat_full_prec: 0.0,
    ops.mulmat_id: 0.0,
    ops.sum_rows: 0.0,
    ops.mean: nan,
    ops.conv2d: 0.0,
    ops.conv3d: 0.0,
    ops.conv1d_dw: 0.0,
    ops.im2col: 0.0,
    ops.avg_pool2d: 0.0,
    ops.pad_ext: 0.0,
}
"""The values of results that are not empty, though an operand is."""


def lower(g: Builder, graph: Graph, calls: Calls, bind: Callable[[Node], None]) -> None:
    """Lower a graph by kernels; `bind` gives a leaf or weight its tensor."""
    for node in graph.nodes:
        _check_extent(node)
        if node.op is None:
            bind(node)
        elif not node.op.view:
            g.start_node(node)
            _lower(g, node, node.op, calls[node.op])


def _check_extent(node: Node) -> None:
    """Refuse sizes that would overflow in C."""
    extents = four(node)
    if prod(n or 1 for n in extents) > LARGEST:
        raise MemoryError(f"{node} fits no memory")
    if max(*extents, rows := prod(extents[1:])) > LONGEST:
        raise UnsupportedOpError(
            f"backend 'ggml': {node} has {rows} rows, extents and numbers of rows go up to {LONGEST}; take a smaller tensor, "
            "or a smaller context if it is a cache"
        )


def _lower(g: Builder, node: Node, op: Op[Any, Any], call: Callable[..., Ptr]) -> None:
    if op.writes is not None:
        if all(operand.size for operand in node.operands):
            g.wrote(node, call(g, *node.args))
    elif node.size == 0:
        g.bind(node, g.new(node.dtype, four(node)))
    elif _has_empty_operand(node, op):
        g.bind(node, g.full(node.dtype, four(node), WHEN_EMPTY.get(op, 0.0)))
    else:
        g.finish(node, call(g, *node.args))


def _has_empty_operand(node: Node, op: Op[Any, Any]) -> bool:
    if op in (ops.ssm_scan, ops.delta_rule):
        return bool(node.args[0].size == 0)  # no states to sum
    return op in WHEN_EMPTY and any(operand.size == 0 for operand in node.operands)
