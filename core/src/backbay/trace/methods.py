"""The methods of Tensor that trace ops: each checks its arguments by the op's rule, then records a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, overload

from ..errors import DTypeError, ShapeError
from ..ops.arguments import Parameter
from ..ops.declaration import REQUIRED, Op
from ..types.spec import Spec, span

if TYPE_CHECKING:
    from .context import Context
    from .tensor import Tensor

P = ParamSpec("P")


@overload
def method(op: Op[Concatenate[Spec, P], Spec]) -> Callable[Concatenate[Tensor, Context, P], Tensor]: ...
@overload
def method(
    op: Op[Concatenate[Spec, P], list[Spec]],
) -> Callable[Concatenate[Tensor, Context, P], list[Tensor]]: ...
def method(op: Op[Any, Any]) -> Callable[..., Any]:
    """The method of Tensor that traces an op.

    Its source is generated from the op's parameters, as dataclasses generate __init__: a generic method, which binds
    and checks arguments in loops, takes three to seven times as long.
    """
    names = {f"parse_{p.name}": p.parse for p in op.parameters} | {
        f"default_{p.name}": p.default for p in op.parameters
    }
    helpers = {"op": op, "rule": op.declared, "prepare": op.prepared, "checked_storage": _checked_storage}
    scope: dict[str, Any] = {**names, **helpers, "errors": (ShapeError, DTypeError)}
    exec(compile(_source(op), f"<the method {op.name}>", "exec"), scope)  # noqa: S102  (made of declared names only)
    traced: Callable[..., Any] = scope[op.name]
    traced.__doc__ = op.doc
    return traced


def _source(op: Op[Any, Any]) -> str:
    first, *others = op.parameters
    bound = "".join(f"{p.name}, " for p in op.parameters)
    body = [line for p in others for line in _check(p)]
    if op.prepared is not None:
        body.append(f"{bound}= prepare(ctx, ({bound}))")
    if op.inline:
        body += [f"rule({_call(op)})", f"return op.open(ctx, ({bound}))"]
    else:
        body += [
            f"spec = rule({_call(op)})",
            "recording = ctx.recording",
            *_admission(op),
            *_recording(op, bound),
        ]
    keywords = [_declaration(p) for p in others if p.keyword_only]
    positional = [_declaration(p) for p in others if not p.keyword_only]
    signature = ", ".join([first.name, "ctx", *positional, *(["*", *keywords] if keywords else [])])
    lines = "".join(f"        {line}\n" for line in body)
    failed = f"    except errors as error:\n        raise op.explain(error, ({bound})) from None\n"
    return f"def {op.name}({signature}):\n    try:\n{lines}{failed}"


def _declaration(p: Parameter) -> str:
    if p.variadic:
        return f"*{p.name}"
    return p.name if p.default is REQUIRED else f"{p.name}=default_{p.name}"


def _call(op: Op[Any, Any]) -> str:
    stars = {p.name: "*" for p in op.parameters if p.variadic}
    return ", ".join(
        f"{p.name}={p.name}" if p.keyword_only else stars.get(p.name, "") + p.name for p in op.parameters
    )


def _check(p: Parameter) -> list[str]:
    """Lines that check and convert an argument; an argument of the right class costs one comparison."""
    if p.quick_class is None:
        return [f"{p.name} = parse_{p.name}({p.name})"]
    absent = f" and {p.name} is not None" if p.is_optional else ""
    return [f"if {p.name}.__class__ is not {p.quick_class}{absent}: {p.name} = parse_{p.name}({p.name})"]


def _admission(op: Op[Any, Any]) -> list[str]:
    """Lines that admit or refuse operands of other contexts, and ids."""
    lines = []
    for p in (op.parameters[i] for i in op.operands):
        absent = f"{p.name} is not None and " if p.is_optional else ""
        lines.append(f"if {absent}{p.name}.home is not recording: recording.admit({p.name})")
    if op.ids is not None:
        (among, dim), ids = op.among, op.parameters[op.ids].name
        lines.append(f"recording.admit_ids({ids}, {op.parameters[among].name}.dim({dim}))")
    return lines


def _recording(op: Op[Any, Any], bound: str) -> list[str]:
    """Lines that record the node: a view of the receiver, an alias of the destination, or a new result."""
    if op.view:
        base = op.parameters[0].name
        storage = f"checked_storage({base}, spec)" if op.strays else f"{base}.storage or {base}"
        where, lines = f"spec.strides, spec.offset, {storage}", []
    elif op.writes is not None:
        target = op.parameters[op.writes].name
        where = f"{target}.strides, {target}.offset, storage"
        lines = [f"storage = {target}.storage or {target}", "recording.admit_write(storage)"]
    else:
        where, lines = "None, 0, None", []
    return [*lines, f"return recording.record(ctx.placement, op, ({bound}), spec.dtype, spec.shape, {where})"]


def _checked_storage(base: Tensor, spec: Spec) -> Tensor:
    """The storage of a view; ShapeError if the view reaches beyond it."""
    storage = base.storage or base
    end = spec.offset + span(spec)
    if spec.offset < 0 or end > storage.nbytes:
        raise ShapeError(
            f"bytes {spec.offset} to {end} are outside of the {storage.nbytes} bytes of {storage}"
        )
    return storage
