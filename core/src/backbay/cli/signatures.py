"""Signatures of ops as text: brief for tables, or as a method of Tensor, with types."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from backbay.ops.declaration import Op
from backbay.types.spec import Spec


def brief(op: Op[..., Any]) -> str:
    """The parameters after the receiver: `rms_norm(weight, eps=1e-05)`."""
    return f"{op.name}({', '.join(_listed(op, _brief))})"


def typed(op: Op[..., Any]) -> str:
    """The method with types: `x.rms_norm(ctx, weight: Tensor | None = None, eps: float = 1e-05) -> Tensor`."""
    receiver = op.parameters[0].name
    shown = ", ".join(["ctx", *_listed(op, _typed)])
    return f"{receiver}.{op.name}({shown}) -> {type_name(op.signature.return_annotation)}"


def type_name(kind: Any) -> str:
    """The text of an annotation for callers: Tensor in place of the rule's Spec."""
    if get_origin(kind) is Annotated:
        return type_name(get_args(kind)[0])
    if kind is Spec:
        return "Tensor"
    if isinstance(kind, UnionType):
        return " | ".join(map(type_name, get_args(kind)))
    if get_origin(kind) is Literal:
        return " | ".join(map(repr, get_args(kind)))
    if kind is type(None):
        return "None"
    inner = ", ".join(map(type_name, get_args(kind)))
    name: str = kind.__name__
    return f"{name}[{inner}]" if inner else name


def _listed(op: Op[..., Any], show: Callable[[inspect.Parameter], str]) -> list[str]:
    """The parameters after the receiver, with a star before keyword-only ones."""
    others = list(op.signature.parameters.values())[1:]
    named = [show(p) for p in others if p.kind is p.KEYWORD_ONLY]
    return [*[show(p) for p in others if p.kind is not p.KEYWORD_ONLY], *(["*", *named] if named else [])]


def _brief(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.default is parameter.empty:
        return parameter.name
    return f"{parameter.name}={_value(parameter.default)}"


def _typed(parameter: inspect.Parameter) -> str:
    kind = type_name(parameter.annotation)
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}: {kind}"
    default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
    return f"{parameter.name}: {kind}{default}"


def _value(default: object) -> str:
    return str(default) if type(default).__module__ == "backbay.types.dtypes" else repr(default)
