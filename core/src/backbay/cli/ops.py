"""The ops, and how each installed backend runs them.

  kernel        the backend has a kernel
  composite     core composes the op of other ops
  core          views, and ops that are always traced as other ops: they run on every backend
  unsupported   the backend has no kernel, and there is no composite whose ops it supports

The last column names the architectures of installed packages that use the op, or counts them. The table shows
declarations: a kernel may refuse some dtypes, before anything runs. `?` stands for a backend that
cannot be loaded.
"""

from __future__ import annotations

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Sequence
from typing import Any

from backbay.composites.parts import by_kernels
from backbay.discovery.entry_points import declared
from backbay.discovery.installed import backends, entry
from backbay.discovery.probe import ProbeResult, probe_all
from backbay.ops.declaration import OPS, Op
from backbay.types.params import Level

from .output import JSON_HELP, say, say_json, table
from .signatures import brief, typed

CORE, UNKNOWN = "core", "?"
NAMED = 3  # architectures that the table names
USERS = "backbay.op_users"
"""The entry-point group of tables: the names of architectures by that of an op."""

log = logging.getLogger(__name__)


def add_arguments(parser: ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help=JSON_HELP)
    formats.add_argument("--markdown", action="store_true", help="print the reference, docs/reference/ops.md")
    parser.add_argument("--backend", metavar="NAME", help="only this backend, by name or as module:Class")


def run(args: Namespace) -> int:
    if args.markdown:
        from .reference import reference

        say(reference())
        return 0
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
            for op, names in dict(point.load()).items():
                found.setdefault(op, set()).update(names)
        except Exception as error:  # noqa: BLE001  another package's module
            log.warning("%s of %s cannot be read: %s", USERS, point.origin, error)
    return {op: sorted(names) for op, names in found.items()}


def level(op: Op[..., Any], result: ProbeResult) -> str:
    """How a backend runs an op, by its declared kernels."""
    if result.kernels is None:
        return CORE if op.view or op.inline else UNKNOWN
    found = declared_level(op, {OPS[name] for name in result.kernels if name in OPS})
    return found.value if found else CORE


def declared_level(op: Op[..., Any], kernels: Collection[Op[..., Any]]) -> Level | None:
    """How an op runs with these kernels; None if core runs it on every backend."""
    return None if op.view or op.inline else by_kernels(op, kernels).level


def _table(probed: Sequence[ProbeResult], users: dict[str, list[str]]) -> str:
    titles = ("family", "op", *[result.entry.name for result in probed], "used by")
    rows = []
    for op in OPS.values():
        names = users.get(op.name, [])
        used = ", ".join(names) if len(names) <= NAMED else f"{len(names)} architectures"
        rows.append((op.family, brief(op), *[level(op, result) for result in probed], used))
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
        "backends": {result.entry.name: level(op, result) for result in probed},
    }
