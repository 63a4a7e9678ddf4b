"""The ops that a composite needs, found by tracing it aside: a backend can run it only if it supports all of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from threading import RLock
from typing import TYPE_CHECKING, Any

from .. import ops
from ..errors import BackbayError
from ..ops.declaration import REQUIRED, Op
from ..trace.context import Context
from ..trace.recording import DEFAULT_MAX_NODES, Recording
from ..trace.tensor import trace_op
from ..types.dtypes import DType
from ..types.layers import Placement
from ..types.params import COMPOSITE, KERNEL, NO_KERNEL, Level, Support, unsupported
from ..types.spec import Spec, span
from .graph_builder import Supports, build_graph

if TYPE_CHECKING:
    from ..data.leaf import Leaf

Specs = Sequence[Spec | None]
Parts = tuple[tuple[Op[Any, Any], Specs], ...]


class TraceOnlyBackend:
    """A substitute for a backend, for recordings that are only traced: its leaves have no memory."""

    name = "none"
    busy = 0
    closed = False
    closed_because = ""

    def __init__(self) -> None:
        self.lock = RLock()

    def take_leaf(self, spec: Spec, placement: Placement) -> None:
        """No memory."""

    def drop_leaf(self, leaf: Leaf) -> None:
        """Nothing to free."""

    def forget(self, recording: Recording) -> None:
        """No recordings are kept."""


class OpenFirstOp:
    """Support that calls the first op a composite and all others kernels, so that only one composite is opened."""

    def __init__(self, *, opened: bool) -> None:
        self.opened = opened

    def __call__(self, op: Op[Any, Any], specs: Specs) -> Support:
        first, self.opened = not self.opened, True
        return COMPOSITE if first else KERNEL


def composed(op: Op[Any, Any], specs: Specs, supports: Supports) -> Support:
    """COMPOSITE, unless the op has no composite, or `supports` says no to one of its parts."""
    if op.composite is None:
        return NO_KERNEL
    for part, given in parts(op, specs):
        support = supports(part, given)
        if not support:
            why = ", which has no kernel" if support == NO_KERNEL else f": {support.reason}"
            return unsupported(f"its composite needs {part.name}{why}")
    return COMPOSITE


def by_kernels(op: Op[Any, Any], kernels: Collection[Op[Any, Any]]) -> Support:
    """How an op runs, on operands of one element each, with these kernels alone."""

    def supports(op: Op[Any, Any], specs: Specs) -> Support:
        return KERNEL if op in kernels or op.view else composed(op, specs, supports)

    operands: list[Any] = []
    for index in op.operands:
        spec = Spec(DType.I32 if index == op.ids else DType.F32, (1,))
        parameter = op.parameters[index]
        operands.append((spec,) if parameter.variadic else None if parameter.is_optional else spec)
    return supports(op, operands)


def parts(op: Op[Any, Any], specs: Specs) -> Parts:
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
    ctx = _scratch_context()
    try:
        args = [number if p.default is REQUIRED else p.default for p in op.parameters]
        for index, key in zip(op.operands, keys, strict=False):
            args[index] = _stand_in(ctx, key)
        made = trace_op(ctx, op, args)
        return _kernels(ctx, made, OpenFirstOp(opened=op.inline))  # tracing has opened an inline op
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
    """The kernels of a graph, each with its operands."""
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
