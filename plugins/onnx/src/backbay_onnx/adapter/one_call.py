"""One op as a graph of its own, over operands as a kernel gets them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from backbay import DType, Graph, Node, ops
from backbay.internals import Array
from backbay.plugin import NUMPY, Placement

WIDENED = DType.I32  # bf16, and bytes of quantized types, which few engines move


def call_graph(node: Node) -> Graph:
    """The graph of a node alone. What only moves, moves as it is stored, or as integers; other floats are f32."""
    op = node.op
    assert op is not None
    nodes: list[Node] = []
    args = list(node.args)
    for position in op.operands:
        value = args[position]
        operands = value if isinstance(value, tuple) else (value,)
        leaves = tuple([each and _leaf(nodes, node, each) for each in operands])
        args[position] = leaves if isinstance(value, tuple) else leaves[0]
    first = node.args[0]
    if op.moves and first.dtype.is_quantized and op is ops.contiguous:
        args[1:] = [()]  # the shape counts elements; core knows it
    elif op.moves and first.dtype.is_quantized and op is ops.repeat_4d:
        args[1] = first.dtype.row_size(args[1])
    if op.writes is not None:
        target: Node = args[op.writes]
        made = _node(len(nodes), "op", target.dtype, target.shape, op, tuple(args), target)
    else:
        dtype, shape = _as_moved(first, node) if op.moves else (_as_number(node.dtype), node.shape)
        if op is ops.contiguous and first.dtype.is_quantized:
            shape = nodes[0].shape
        made = _node(len(nodes), "op", dtype, shape, op, tuple(args))
    return Graph((*nodes, made), (made,), None)


def _leaf(nodes: list[Node], reader: Node, operand: Node) -> Node:
    op = reader.op
    assert op is not None
    written = op.writes is not None and operand is reader.args[op.writes]
    is_ids = op.ids is not None and operand is reader.args[op.ids]
    if not op.moves or is_ids:
        dtype, shape = _as_number(operand.dtype), operand.shape
    elif op.writes is None or written:
        dtype, shape = _as_moved(operand, operand)
    else:  # core has converted it to the dtype of the target
        target = reader.args[op.writes]
        like = target if op is ops.copy and operand.dtype is not target.dtype else operand
        dtype, shape = _as_moved(target, like)
    nodes.append(_node(len(nodes), "state" if written else "input", dtype, shape))
    return nodes[-1]


def _as_moved(stored: Node, shaped: Node) -> tuple[DType, tuple[int, ...]]:
    """The dtype and shape of elements of the dtype of `stored` in the shape of `shaped`."""
    dtype, shape = stored.dtype, shaped.shape
    if dtype.is_quantized:
        return WIDENED, (dtype.row_size(shape[0]), *shape[1:])
    return WIDENED if dtype is DType.BF16 else dtype, shape


def _as_number(dtype: DType) -> DType:
    return dtype if dtype.is_integer else DType.F32


def _node(
    index: int,
    kind: Any,
    dtype: DType,
    shape: tuple[int, ...],
    op: Any = None,
    args: Any = (),
    storage: Any = None,
) -> Node:
    spec = SimpleNamespace(
        dtype=dtype, shape=shape, strides=None, offset=0, op=op, leaf=None, placement=Placement()
    )
    return Node(index, kind, spec, args, storage)


def widened(array: Array, leaf: Node) -> Array:
    """A kernel's operand as the leaf that stands for it."""
    return array.astype(NUMPY[leaf.dtype], copy=False)
