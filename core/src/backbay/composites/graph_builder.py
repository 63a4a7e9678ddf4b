"""The graph builder: it orders traced tensors, and replaces each op without a kernel by its composite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DeclaredUnsupportedError
from ..graph.graph import Graph, Node, NodeKind
from ..ops.declaration import Op, str_spec
from ..trace.context import Context
from ..trace.tensor import Tensor
from ..types.params import Level, Support
from ..types.spec import Spec

if TYPE_CHECKING:
    from ..trace.recording import Recording


Supports = Callable[[Op[Any, Any], Sequence[Spec | None]], Support]
"""How an op runs on given operands."""


def build_graph(recording: Recording, roots: tuple[Tensor, ...], supports: Supports) -> Graph:
    """Build the graph of the roots: each root in order, behind its ancestors, depth first in the order of operands."""
    builder = Builder(recording, supports)
    with recording.uncounted():  # the nodes of composites do not count as the caller's
        outputs = tuple([builder.place(root) for root in roots])
    return Graph(tuple(builder.nodes), outputs, recording.batch_size)


def in_single(value: Any) -> Any:
    """Round the floats of an attribute to float32, so that all backends compute with the same numbers."""
    if isinstance(value, float):
        return _single(value) if value else value  # _single's cache cannot tell 0.0 from -0.0
    if isinstance(value, tuple) and float in map(type, value):
        # A NamedTuple, such as rope's yarn, keeps its class.
        return type(value)(*map(in_single, value))
    return value


@lru_cache(maxsize=1024)
def _single(value: float) -> float:
    with np.errstate(over="ignore"):  # a number that is too large becomes infinity
        return float(np.float32(value))


class Builder:
    def __init__(self, recording: Recording, supports: Supports) -> None:
        self.recording, self._supports = recording, supports
        self.nodes: list[Node] = []
        self._placed: dict[Tensor, Node] = {}
        self._opened: dict[Tensor, Tensor] = {}

    def place(self, root: Tensor) -> Node:
        """Place a tensor behind its ancestors, and return its node. Chains may be too deep for recursion."""
        placed, stack = self._placed, [root]
        waiting: set[Tensor] = set()  # tensors whose ancestors are above them on the stack
        while stack:
            tensor = stack[-1]
            if tensor in placed:
                stack.pop()
            elif tensor in waiting:
                placed[tensor] = self._node(stack.pop())
            else:
                waiting.add(tensor)
                stack += [needed for needed in reversed(self._needs(tensor)) if needed not in placed]
        return placed[root]

    def _needs(self, tensor: Tensor) -> list[Tensor]:
        op = tensor.op
        if op is None:
            return []
        support = self._supports(op, [tensor.args[i] for i in op.operands])
        if support.level is Level.NONE:
            specs = " x ".join(str_spec(t) for t in op.flat_operands(tensor.args))
            why = f": {support.reason}" if support.reason else ""
            name = self.recording.backend.name
            raise DeclaredUnsupportedError(f"backend {name!r} cannot run {op.name}: {specs}{why}")
        if support.level is Level.KERNEL:
            return list(op.flat_operands(tensor.args))
        if tensor not in self._opened:
            ctx = Context(self.recording, tensor.placement)
            made: Tensor = op.open(ctx, tensor.args)
            stored = made.storage is None and made.leaf is None and made.shape == tensor.shape
            # The views of a result rely on a contiguous layout.
            self._opened[tensor] = made if stored or tensor.storage else made.contiguous(ctx, *tensor.shape)
        return [self._opened[tensor]]

    def _node(self, tensor: Tensor) -> Node:
        if tensor in self._opened:
            return self._placed[self._opened[tensor]]
        storage = self._placed[tensor.storage] if tensor.storage is not None else None
        integers = tensor.dtype.is_integer
        args = tuple(
            [
                self._placed[value] if isinstance(value, Tensor) else value if integers else in_single(value)
                for value in tensor.args
            ]
        )
        node = Node(len(self.nodes), self._kind(tensor), tensor, args, storage)
        self.nodes.append(node)
        return node

    def _kind(self, tensor: Tensor) -> NodeKind:
        if tensor.leaf is None:
            return "op"
        if tensor.leaf.home is None:
            return "parameter"
        return "state" if tensor.leaf.computed or tensor.leaf.home is not self.recording else "input"
