"""A graph from a file, traced node by node as ops of the contract: dtypes and shapes are needed, and no weight's numbers."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backbay import Context, DType, DTypeError, Op, ShapeError, Tensor
from backbay.internals import NodeKind, same_shape
from backbay.plugin import Node

Lowering = Callable[..., Any]
"""Returns a node's results as tensors; it gets the tracer, and the node's arguments as the file has them.

A lowering with a parameter `results` gets the values that the tensors are for.
"""


class UnmappedNodeError(Exception):
    """The contract has no counterpart of a node; the text is the reason in a word or two."""


def require(condition: object, reason: str) -> None:
    if not condition:
        raise UnmappedNodeError(reason)


@dataclass(eq=False)
class GraphValue:
    """A value of the graph.

    dtype      or the name of one that the contract lacks
    shape      the outermost dimension first, as files have it; None if unknown
    constant   it depends on no input of the graph: an engine has it before the first call
    numbers    its elements, if they are constant and few
    tensor     its counterpart, from its first use on
    """

    dtype: DType | str = "unknown dtype"
    shape: tuple[int, ...] | None = None
    constant: bool = False
    numbers: list[Any] | None = None
    tensor: Tensor | None = None

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape; UnmappedNodeError if it is unknown, or has too many dimensions for a tensor."""
        require(self.shape is not None, "unknown shape")
        require(len(self.shape or ()) <= 4, f"{len(self.shape or ())} dimensions")
        return self.shape or ()

    def dim(self, axis: int) -> int:
        """The dimension of a tensor for an axis, which may count from the end."""
        rank = len(self.extents)
        require(-rank <= axis < rank, "axis")
        return rank - 1 - axis % rank


@dataclass
class GraphNode:
    """A node of the graph: its name and lowering, None for none, its arguments by position and by name, and its results."""

    name: str
    lowering: Lowering | None
    args: Sequence[Any]
    named: Mapping[str, Any]
    results: Sequence[GraphValue]

    @property
    def operands(self) -> list[GraphValue]:
        flat = [one for arg in self.args for one in (arg if isinstance(arg, list) else [arg])]
        return [one for one in flat if isinstance(one, GraphValue)]

    def lowered(self, tracer: GraphTracer) -> list[Tensor]:
        if self.lowering is None:
            raise UnmappedNodeError
        signature = inspect.signature(self.lowering)
        more = {"results": self.results} if "results" in signature.parameters else {}
        try:
            bound = signature.bind(tracer, *self.args, **self.named, **more)
        except TypeError:  # the lowering has no parameter for an attribute
            raise UnmappedNodeError("attributes") from None
        made = self.lowering(*bound.args, **bound.kwargs)
        return made if isinstance(made, list) else [made]


class GraphTracer:
    """Traces nodes in a context, and collects the calls.

    The result of a node is an operand of later ones, which so get its layout, such as that of a transposed view. A node
    without a counterpart is counted, and new leaves stand for its results.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.count = ctx, 0
        self.calls: list[Node] = []
        self.unmapped: Counter[str] = Counter()
        self._nodes: dict[Tensor, Node] = {}

    def trace(self, node: GraphNode) -> None:
        """Trace a node, or count it as unmapped; the results of a node that has only constants are constants."""
        if all(value.constant for value in node.operands):
            for result in node.results:
                result.constant = True
            return
        self.count += 1
        try:
            for result, tensor in zip(node.results, node.lowered(self), strict=False):
                result.tensor = self._fitted(tensor, result)
                self._place(result.tensor)
        except (UnmappedNodeError, DTypeError, ShapeError) as error:
            reason = str(error) if isinstance(error, UnmappedNodeError) else "shape"
            if isinstance(error, DTypeError):
                reason = ", ".join(dict.fromkeys(str(value.dtype) for value in node.operands))
            self.unmapped[f"{node.name} ({reason})" if reason else node.name] += 1

    def op(self, op: Op[Any, Any], *args: Any, **named: Any) -> Tensor:
        """Trace an op of values and tensors."""
        x, *others = (self.tensor(arg) if isinstance(arg, GraphValue) else arg for arg in args)
        traced: Tensor = getattr(x, op.name)(self.ctx, *others, **named)
        return traced

    def tensor(self, value: GraphValue) -> Tensor:
        """The counterpart of a value; a leaf, if no call has made it."""
        if value.tensor is None:
            value.tensor = self.leaf(value.dtype, value.extents)
        return value.tensor

    def leaf(self, dtype: DType | str, shape: Sequence[int]) -> Tensor:
        if not isinstance(dtype, DType):
            raise UnmappedNodeError(dtype)
        return self.ctx.empty(dtype, *(shape[::-1] or (1,)))

    def reshaped(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """x in another shape, the outermost dimension first: a view where x's layout allows one, else a copy."""
        extents = tuple(shape[::-1]) or (1,)
        require(len(extents) <= 4, f"{len(extents)} dimensions")
        if x.shape == extents:
            return x
        if x.is_contiguous:
            return x.reshape(self.ctx, *extents)
        steps = [x.stride(n) for n, extent in enumerate(x.shape) if extent != 1]
        if [n for n in x.shape if n != 1] == [n for n in extents if n != 1]:
            strides = [x.dtype.type_size if n == 1 else steps.pop(0) for n in extents]
            if strides[0] == x.dtype.type_size:
                return x.view(self.ctx, 0, extents, strides[1:])
        return x.contiguous(self.ctx, *extents)

    def _fitted(self, x: Tensor, result: GraphValue) -> Tensor:
        """A tensor as the graph has the result that it is for: of that dtype, and of that rank."""
        result.shape = x.shape[::-1] if result.shape is None else result.shape
        require(same_shape(x.shape, result.extents[::-1]), "shape")
        if result.dtype == GraphValue.dtype:
            result.dtype = x.dtype
        if not isinstance(result.dtype, DType):
            raise UnmappedNodeError(result.dtype)
        return self.reshaped(x if x.dtype is result.dtype else x.cast(self.ctx, result.dtype), result.extents)

    def _place(self, tensor: Tensor) -> Node:
        """The node of a tensor, behind those of its operands; calls are collected."""
        if tensor not in self._nodes:
            args = tuple(self._place(arg) if isinstance(arg, Tensor) else arg for arg in tensor.args)
            storage = None if tensor.storage is None else self._place(tensor.storage)
            kind: NodeKind = "input" if tensor.op is None else "op"
            node = self._nodes[tensor] = Node(len(self._nodes), kind, tensor, args, storage)
            if node.op is not None and not node.is_view:
                self.calls.append(node)
        return self._nodes[tensor]
