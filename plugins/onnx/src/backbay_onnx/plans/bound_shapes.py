"""Shapes and bytes of the memory that is bound."""

from __future__ import annotations

from math import prod

from backbay import Graph, Node

from ..lowering.feeds import SizeValues
from ..lowering.lowered_model import LeafInput, RowsOutput, StateOutput


def stored_shape(node: Node) -> tuple[int, ...]:
    """The shape of the values as they lie in memory: rows of a quantized type are bytes."""
    return (node.row_nbytes, *node.shape[1:]) if node.dtype.is_quantized else node.shape


def bound_shape(leaf: LeafInput, graph: Graph, sizes: SizeValues) -> tuple[int, ...]:
    """Innermost first."""
    if leaf.shape is not None:
        return sizes.all(leaf.shape)
    node = graph.nodes[leaf.index]
    return node.shape if leaf.form == "floats" else stored_shape(node)


def bound_nbytes(output: StateOutput | RowsOutput, graph: Graph, sizes: SizeValues) -> int:
    """Bytes of a state, or of its window, or of written rows."""
    return prod(sizes.all(output.shape)) * graph.nodes[output.index].dtype.type_size
