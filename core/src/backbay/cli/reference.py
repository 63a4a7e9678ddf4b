"""The generator of docs/reference/ops.md: every op with its signature and specification, from the declarations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from backbay.ops.declaration import OPS, Op

from .ops import op_users, typed
from .scaffold.kernels_needed import kernels_needed, llama

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

The architectures that use an op are found by tracing small models of most of the engine's architectures."""


def reference() -> str:
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
