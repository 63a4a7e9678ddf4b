"""Graphs to judge: one op over operands as its kernel gets them, or a whole graph without weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from backbay import DType, Graph, Node, Op, Spec, ops
from backbay.internals import Array
from backbay.plugin import Placement


def call_graph(node: Node) -> Graph:
    """The graph of a node alone. What only moves, moves as it is stored, or as integers; other floats are f32."""
    op, args = node.op, list(node.args)
    assert op is not None
    first: Node = args[0]
    spec: Spec
    places = [position for position in op.operands if args[position] is not None]
    leaves = [_leaf(index, node, position) for index, position in enumerate(places)]
    for position, leaf in zip(places, leaves, strict=True):
        args[position] = leaf
    if op is ops.contiguous and first.dtype.is_quantized:
        args[1:], spec = (
            [()],
            leaves[0],
        )  # the shape counts elements, the leaf has bytes; core knows the shape
    elif not op.moves or (op is ops.rows and first.dtype is DType.F16):  # rows of halves are f32
        spec = _computed(node)
    else:
        spec = _moved(first.dtype, node.shape)
    storage = None if op.writes is None else args[op.writes]
    made = _node(len(leaves), "op", storage or spec, op, tuple(args), storage)
    return Graph((*leaves, made), (made,), None)


def _leaf(index: int, reader: Node, position: int) -> Node:
    op, operand = reader.op, reader.args[position]
    assert op is not None
    if position == op.writes:
        return _node(index, "state", _moved(operand.dtype, operand.shape))
    if not op.moves or position == op.ids:
        return _node(index, "input", _computed(operand))
    if op.writes is None:
        return _node(index, "input", _moved(operand.dtype, operand.shape))
    target = reader.args[op.writes]  # core has converted the data to its dtype, a copy's data to its shape
    converted = op is ops.copy and operand.dtype is not target.dtype
    return _node(index, "input", _moved(target.dtype, target.shape if converted else operand.shape))


def _computed(operand: Spec) -> Spec:
    return Spec(operand.dtype if operand.dtype.is_integer else DType.F32, operand.shape)


def _moved(dtype: DType, shape: tuple[int, ...]) -> Spec:
    """Elements as they are stored. Few engines move bf16 and bytes: they become integers of 32 bits."""
    if dtype.is_quantized:
        return Spec(DType.I32, (dtype.row_size(shape[0]), *shape[1:]))
    return Spec(DType.I32 if dtype is DType.BF16 else dtype, shape)


def _node(
    index: int,
    kind: Any,
    spec: Spec,
    op: Op[Any, Any] | None = None,
    args: tuple[Any, ...] = (),
    storage: Node | None = None,
) -> Node:
    tensor: Any = SimpleNamespace(
        dtype=spec.dtype,
        shape=spec.shape,
        strides=None,
        offset=0,
        op=op,
        leaf=None,
        placement=Placement(),
    )
    return Node(index, kind, tensor, args, storage)


def without_weights(graph: Graph) -> Graph:
    """The graph with inputs in the place of weights, which products would read packed."""
    made: list[Node] = []
    for node in graph.nodes:
        kind = "input" if node.kind == "parameter" else node.kind
        args = tuple([made[value.index] if isinstance(value, Node) else value for value in node.args])
        made.append(Node(node.index, kind, node, args, made[node.storage.index] if node.is_view else None))
    return Graph(tuple(made), tuple([made[node.index] for node in graph.outputs]), graph.batch_size)


def widened(array: Array, leaf: Node) -> Array:
    """A kernel's operand as its leaf holds it."""
    return array.astype(np.int32) if leaf.dtype is DType.I32 else array
