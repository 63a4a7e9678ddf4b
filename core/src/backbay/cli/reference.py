"""The generator of docs/reference/ops.md: every op with its signature and specification, from the declarations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from backbay.ops.declaration import OPS, Op

from .op_users import op_users, users_of
from .scaffold.kernels_needed import kernels_needed
from .scaffold.small_models import llama
from .signatures import typed

INTRODUCTION = """\
# The ops

Made by `backbay ops --markdown` from the declarations in core; do not edit it by hand.

Each op is a method of its receiver, the first name in its signature. Dimension 0 is the innermost one, and a shape
is written with it in front: `(in, out)`. A float attribute means its nearest float32, on every backend.

- **kernel**: a backend without a kernel for the op does not support it.
- **composite**: on a backend without a kernel, core composes the op of other ops.
- **view**: the result holds no data; core resolves it for every backend.
- **inline**: tracing the op traces other ops instead, on every backend.

The architectures that use an op are found by tracing small models of most of the engine's architectures."""


def reference() -> str:
    """The whole text of docs/reference/ops.md."""
    users = op_users()
    parts = [INTRODUCTION, _summary(), _smallest()]
    for family, ops in groupby(sorted(OPS.values(), key=_family), key=lambda op: op.family):
        parts.append(f"## {family}")
        parts += [_section(op, users) for op in ops]
    return "\n\n".join(parts)


def kind(op: Op[..., Any]) -> str:
    """The kind of an op for a backend: view, inline, composite or kernel."""
    if op.view or op.inline:
        return "view" if op.view else "inline"
    return "composite" if op.composite is not None else "kernel"


def _family(op: Op[..., Any]) -> int:
    """The sort key of an op's family, in the order of declaration."""
    return list(dict.fromkeys(other.family for other in OPS.values())).index(op.family)


def _summary() -> str:
    lines = ["| family | ops |", "|---|---|"]
    for family, ops in groupby(sorted(OPS.values(), key=_family), key=lambda op: op.family):
        lines.append(f"| {family} | {', '.join(f'[{op.name}](#{op.name})' for op in ops)} |")
    return "\n".join(lines)


def _smallest() -> str:
    needed = kernels_needed(llama)
    names, opened = _listed(needed.kernels), _listed(needed.composites)
    return (
        "## The kernels that run a Llama\n\n"
        f"With these {len(needed.kernels)} kernels a backend runs a Llama, cache included; core does the rest:\n\n"
        f"{names}.\n\n"
        f"Core then composes {opened}: a kernel for one of these only makes a backend faster.\n"
        "The list is found by tracing such a model, and a test runs it on a backend with these kernels alone."
    )


def _listed(ops: Iterable[Op[..., Any]]) -> str:
    chosen = set(ops)
    return ", ".join(f"`{op.name}`" for op in OPS.values() if op in chosen)


def _section(op: Op[..., Any], users: dict[str, list[str]]) -> str:
    used = f"; used by {users_of(op, users)}" if users else ""
    return f"### {op.name}\n\n```python\n{typed(op)}\n```\n\n*{kind(op)}*{used}\n\n{op.doc}"
