"""The ops, and how each installed backend runs them.

  kernel        the backend has a kernel
  composite     core composes the op of other ops
  core          views, and ops that are always traced as other ops: they run on every backend
  unsupported   the backend has no kernel, and there is no composite whose ops it supports

The last column names the architectures of installed packages that use the op, or counts them; encoders of pictures and of
sound have names such as image:gemma3 and audio:whisper. The table shows declarations: a kernel may refuse some dtypes, before
anything runs. `?` stands for a backend that cannot be loaded.
"""

from __future__ import annotations

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from backbay.composites.graph_builder import level_by_kernels
from backbay.discovery.installed import backends, declared, entry
from backbay.discovery.registration import hook_result
from backbay.ops.op_declaration import OPS, Op
from backbay.types.backend_declarations import Level
from backbay.types.dtype import DType
from backbay.types.spec import Spec

from .output import JSON_HELP, say, say_json, table
from .scaffold.kernels_needed import kernels_needed, trace_llama

if TYPE_CHECKING:
    from backbay.discovery.probe import ProbeResult

CORE, UNKNOWN = "core", "?"
NAMED = 3  # architectures that the table names
USERS = "backbay.op_users"
log = logging.getLogger(__name__)

SHOWN = 12  # architectures by name
INTRODUCTION = """\
# The ops

Made by `backbay ops --markdown` from the declarations in core; do not edit it by hand.

Each op is a method of its receiver, the first name in its signature. Dimension 0 is the innermost one, and a shape
is written with it in front: `(in, out)`. A float attribute means its nearest float32, on every backend.

- **kernel**: a backend without a kernel for the op does not support it.
- **composite**: on a backend without a kernel, core composes the op of other ops.
- **view**: the result holds no data; core resolves it for every backend.
- **inline**: tracing the op traces other ops instead, on every backend.

The architectures that use an op are found by tracing small models of most of the engine's architectures. Names such as
`image:gemma3` and `audio:whisper` are those of encoders."""


def brief_parameters(op: Op[..., Any]) -> str:
    """The parameters after the receiver: `rms_norm(weight, eps=1e-05)`."""
    return f"{op.name}({', '.join(_listed(op, types=False))})"


def typed(op: Op[..., Any]) -> str:
    """The method with types: `x.rms_norm(ctx, weight: Tensor | None = None, eps: float = 1e-05) -> Tensor`."""
    receiver = op.parameters[0].name
    shown = ", ".join(["ctx", *_listed(op, types=True)])
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


def _listed(op: Op[..., Any], *, types: bool) -> list[str]:
    """The parameters after the receiver, with a star before keyword-only ones."""
    listed: list[str] = []
    for p in list(op.signature.parameters.values())[1:]:
        if p.kind is p.KEYWORD_ONLY and "*" not in listed:
            listed.append("*")
        text = f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name
        text += f": {type_name(p.annotation)}" if types else ""
        if p.default is not p.empty:
            text += " = " if types else "="
            text += str(p.default) if isinstance(p.default, DType) else repr(p.default)
        listed.append(text)
    return listed


def add_arguments(parser: ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help=JSON_HELP)
    formats.add_argument("--markdown", action="store_true", help="print the reference, docs/reference/ops.md")
    parser.add_argument("--backend", metavar="NAME", help="only this backend, by name or as module:Class")


def run(args: Namespace) -> int:
    if args.markdown:
        say(ops_reference())
        return 0
    from backbay.discovery.probe import probe_all  # subprocess takes longer to import than most of core

    users = op_users()
    probed = probe_all([entry(args.backend)] if args.backend else backends().values())
    if args.json:
        say_json([_as_dict(op, probed, users) for op in OPS.values()])
    else:
        say(_table(probed, users))
    loaded = [result for result in probed if result.kernels is not None]
    return 1 if args.backend and not loaded else 0


def op_users() -> dict[str, list[str]]:
    """The architectures by op, of all tables; a package that cannot be imported has none."""
    found: dict[str, set[str]] = {}
    for point in (point for points in declared(USERS).values() for point in points):
        try:
            for op, names in dict(hook_result("backbay_op_users", point.load(), point.name)).items():
                found.setdefault(op, set()).update(names)
        except Exception as error:  # noqa: BLE001  another package's module
            log.warning("%s of %s cannot be read: %s", USERS, point.origin, error)
    return {op: sorted(names) for op, names in found.items()}


def op_level(op: Op[..., Any], result: ProbeResult) -> str:
    """How a backend runs an op, by its declared kernels."""
    if result.kernels is None:
        return CORE if op.view or op.inline else UNKNOWN
    found = declared_level(op, {OPS[name] for name in result.kernels if name in OPS})
    return found.value if found else CORE


def declared_level(op: Op[..., Any], kernels: Collection[Op[..., Any]]) -> Level | None:
    """How an op runs with these kernels; None if core runs it on every backend."""
    return None if op.view or op.inline else level_by_kernels(op, kernels).level


def _table(probed: Sequence[ProbeResult], users: dict[str, list[str]]) -> str:
    titles = ("family", "op", *[result.entry.name for result in probed], "used by")
    rows = []
    for op in OPS.values():
        names = users.get(op.name, [])
        used = ", ".join(names) if len(names) <= NAMED else f"{len(names)} architectures"
        rows.append((op.family, brief_parameters(op), *[op_level(op, result) for result in probed], used))
    failures = [f"{v.entry.name} cannot be loaded: {v.reason}" for v in probed if v.kernels is None]
    return "\n".join([table(titles, rows), *failures])


def _as_dict(op: Op[..., Any], probed: Sequence[ProbeResult], users: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "op": op.name,
        "family": op.family,
        "signature": typed(op),
        "doc": op.doc,
        "composite": op.composite is not None and not op.view and not op.inline,
        "architectures": users.get(op.name, []),
        "backends": {result.entry.name: op_level(op, result) for result in probed},
    }


def ops_reference() -> str:
    users = op_users()
    order = list(dict.fromkeys(op.family for op in OPS.values()))
    by_family = sorted(OPS.values(), key=lambda op: order.index(op.family))
    rows, sections = ["| family | ops |", "|---|---|"], []
    for family, group in groupby(by_family, key=lambda op: op.family):
        ops = list(group)
        rows.append(f"| {family} | {', '.join(f'[{op.name}](#{op.name})' for op in ops)} |")
        sections += [f"## {family}", *[_section(op, users) for op in ops]]
    return "\n\n".join([INTRODUCTION, "\n".join(rows), _smallest(), *sections])


def _smallest() -> str:
    needed = kernels_needed(trace_llama)
    names, opened = _names(needed.kernels), _names(needed.composites)
    return (
        "## The kernels that run a Llama\n\n"
        f"With these {len(needed.kernels)} kernels a backend runs a Llama, cache included; core does the rest:\n\n"
        f"{names}.\n\n"
        f"Core then composes {opened}: a kernel for one of these only makes a backend faster.\n"
        "The list is found by tracing such a model, and a test runs it on a backend with these kernels alone."
    )


def _names(ops: Iterable[Op[..., Any]]) -> str:
    chosen = set(ops)
    return ", ".join(f"`{op.name}`" for op in OPS.values() if op in chosen)


def _section(op: Op[..., Any], users: dict[str, list[str]]) -> str:
    kind = "composite" if op.composite is not None else "kernel"
    kind = "view" if op.view else "inline" if op.inline else kind
    used = f"; used by {_users_of(op, users)}" if users else ""
    return f"### {op.name}\n\n```python\n{typed(op)}\n```\n\n*{kind}*{used}\n\n{op.doc}"


def _users_of(op: Op[..., Any], users: dict[str, list[str]]) -> str:
    names, every = users.get(op.name, []), {name for others in users.values() for name in others}
    if not names:
        return "no architecture"
    if len(names) == len(every):
        return f"all {len(every)} architectures"
    return ", ".join(names) if len(names) <= SHOWN else f"{len(names)} of {len(every)} architectures"
