"""The graph builder, which orders traced tensors and opens composites, and the parts that a composite needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from threading import RLock
from typing import Any

import numpy as np

from .. import ops
from ..errors import BackbayError, DeclaredUnsupportedError
from ..graph.graph import Graph, Node, NodeKind
from ..ops.op_declaration import REQUIRED, Op, str_spec
from ..trace.context import Context
from ..trace.recording import DEFAULT_MAX_NODES, Recording
from ..trace.tensor import Tensor, trace_op
from ..types.backend_declarations import COMPOSITE, KERNEL, NO_KERNEL, Level, Support, unsupported
from ..types.dtype import DType
from ..types.gpu_layers import Placement
from ..types.spec import Spec, span

Supports = Callable[[Op[Any, Any], Sequence[Spec | None]], Support]
"""How an op runs on given operands."""

Specs = Sequence[Spec | None]
Parts = tuple[tuple[Op[Any, Any], Specs], ...]


def build_graph(
    recording: Recording, roots: tuple[Tensor, ...], supports: Supports, refusals: Collection[str] = ()
) -> Graph:
    """Build the graph of the roots: each root in order, behind its ancestors, depth first in the order of operands.

    Composites run in the place of `refusals`, the texts of calls.
    """
    builder = GraphBuilder(recording, supports, refusals)
    with recording.uncounted():  # the nodes of composites do not count as the caller's
        outputs = tuple([builder.place(root) for root in roots])
    return Graph(tuple(builder.nodes), outputs, recording.batch_size)


def round_to_float32(value: Any) -> Any:
    """Round the floats of an attribute to float32, so that all backends compute with the same numbers."""
    if isinstance(value, float):
        return _single(value) if value else value  # _single's cache cannot tell 0.0 from -0.0
    if isinstance(value, tuple) and float in map(type, value):
        # A NamedTuple, such as rope's yarn, keeps its class.
        return type(value)(*map(round_to_float32, value))
    return value


@lru_cache(maxsize=1024)
def _single(value: float) -> float:
    with np.errstate(over="ignore"):  # a number that is too large becomes infinity
        return float(np.float32(value))


def call_text(op: Op[Any, Any], args: Sequence[Any]) -> str:
    """A call, the same for equal operands and attributes."""

    def text(value: Any) -> str:
        if isinstance(value, Spec):
            return f"{str_spec(value)}{value.strides or ''}{value.offset or ''}"
        return f"({', '.join(map(text, value))})" if type(value) is tuple else repr(round_to_float32(value))

    return f"{op.name}({', '.join(map(text, args))})"


class GraphBuilder:
    def __init__(self, recording: Recording, supports: Supports, refusals: Collection[str]) -> None:
        self.recording, self._supports, self._refusals = recording, supports, refusals
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
        if support.level is Level.KERNEL and not (
            self._refusals and call_text(op, tensor.args) in self._refusals
        ):
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
                self._placed[value]
                if isinstance(value, Tensor)
                else value
                if integers
                else round_to_float32(value)
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


class TraceOnlyBackend:
    """A substitute for a backend, for recordings that are only traced: its leaves have no memory."""

    name = "none"
    busy = 0
    closed = False
    closed_because = ""

    def __init__(self) -> None:
        self.lock = RLock()

    def take_leaf(self, *_: object) -> None:
        """There is no memory to take or to free, and recordings are not kept."""

    drop_leaf = forget = take_leaf


def composed_support(op: Op[Any, Any], specs: Specs, supports: Supports) -> Support:
    """COMPOSITE, unless the op has no composite, or `supports` says no to one of its parts."""
    if op.composite is None:
        return NO_KERNEL
    for part, given in composite_parts(op, specs):
        support = supports(part, given)
        if not support:
            why = ", which has no kernel" if support == NO_KERNEL else f": {support.reason}"
            return unsupported(f"its composite needs {part.name}{why}")
    return COMPOSITE


def level_by_kernels(op: Op[Any, Any], kernels: Collection[Op[Any, Any]]) -> Support:
    """How an op runs, on operands of one element each, with these kernels alone."""

    def supports(op: Op[Any, Any], specs: Specs) -> Support:
        return KERNEL if op in kernels or op.view else composed_support(op, specs, supports)

    operands: list[Any] = []
    for index in op.operands:
        spec = Spec(DType.I32 if index == op.ids else DType.F32, (1,))
        parameter = op.parameters[index]
        operands.append((spec,) if parameter.variadic else None if parameter.is_optional else spec)
    return supports(op, operands)


def composite_parts(op: Op[Any, Any], specs: Specs) -> Parts:
    """The ops that a composite needs, each with its operands; empty if the operands do not determine them.

    Attributes are not known: they get their defaults. An attribute without a default gets 1, or 0 if the rule refuses
    1.
    """
    given = dict(zip(op.operands, specs, strict=False))  # operands at the end may be left out
    if op.varies or any(given.get(i) is None and not op.parameters[i].is_optional for i in op.operands):
        return ()
    keys = tuple([_key(spec) for spec in specs])
    return _parts(op, keys, 1) or _parts(op, keys, 0)


@lru_cache(maxsize=4096)  # every layer of a model has the same few
def _parts(op: Op[Any, Any], keys: tuple[Any, ...], number: int) -> Parts:
    ctx, opened = _scratch_context(), op.inline  # tracing opens an inline op

    def opens_first(part: Op[Any, Any], specs: Specs) -> Support:
        nonlocal opened
        first, opened = not opened, True
        return COMPOSITE if first else KERNEL

    try:
        args = [number if p.default is REQUIRED else p.default for p in op.parameters]
        for index, key in zip(op.operands, keys, strict=False):
            args[index] = _stand_in(ctx, key)
        return _kernels(ctx, trace_op(ctx, op, args), opens_first)
    except BackbayError:  # the rule refuses these operands, or these attributes
        return ()


def composite_kernels(op: Op[Any, Any], args: Sequence[Any], supports: Supports) -> Parts:
    """The kernels that a call of a composite op needs, each with its operands.

    Parts for which `supports` returns COMPOSITE are opened, too. `args` are complete and prepared; operands may belong
    to any context.
    """
    ctx = _scratch_context()
    made: dict[Spec, Any] = {}

    def stand_in(value: Any) -> Any:
        if isinstance(value, Spec):
            if value not in made:
                made[value] = _stand_in(ctx, _key(value))
            return made[value]
        return tuple(map(stand_in, value)) if type(value) is tuple else value

    def opens(part: Op[Any, Any], specs: Specs) -> Support:
        return COMPOSITE if supports(part, specs).level is Level.COMPOSITE else KERNEL

    return _kernels(ctx, op.open(ctx, tuple(map(stand_in, args))), opens)


def _scratch_context() -> Context:
    backend: Any = TraceOnlyBackend()
    return Context(Recording(backend, DEFAULT_MAX_NODES), Placement())


def _kernels(ctx: Context, made: Any, supports: Supports) -> Parts:
    roots = tuple(made) if isinstance(made, list) else (made,)
    nodes = build_graph(ctx.recording, roots, supports).nodes
    found = [(node.op, node.args) for node in nodes if node.op is not None and not node.op.view]
    return tuple([(op, tuple([_spec(_key(args[i])) for i in op.operands])) for op, args in found])


def _stand_in(ctx: Context, key: Any) -> Any:
    """A tensor with an operand's dtype, shape and layout."""
    spec, recording, placement = _spec(key), ctx.recording, ctx.placement
    if not isinstance(spec, Spec):
        return spec and tuple([_stand_in(ctx, one) for one in key])
    if spec.strides is None and not spec.offset:
        return recording.add_leaf(spec, placement, None)
    whole = recording.add_leaf(Spec(DType.I8, (spec.offset + span(spec),)), placement, None)
    args = (whole, 0, spec.shape, ())
    layout = spec.dtype, spec.shape, spec.strides, spec.offset
    return recording.record(placement, ops.view, args, *layout, whole)


def _key(spec: Any) -> Any:
    """A hashable key, equal for equal specs. An operand may be a spec, None, or, if variadic, a tuple of specs."""
    if isinstance(spec, Spec):
        return spec.dtype, tuple(spec.shape), spec.strides, spec.offset
    return spec and tuple([_key(one) for one in spec])


def _spec(key: Any) -> Any:
    """The operand of a key: the inverse of `_key`."""
    if not key or not isinstance(key[0], DType):
        return key and tuple([_spec(one) for one in key])
    return Spec(*key)
