"""The installed backends, whether they work, and on which devices.

Each backend is tried in a child process, and the result is kept for a day at most: `backbay cache` lists what is kept.
The exit status is 0 if at least one backend works, else 1.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import asdict
from typing import Any

from backbay.discovery.installed import backends
from backbay.discovery.probe import TIMEOUT, ProbeResult, probe_all, sort_results
from backbay.discovery.records import version_of
from backbay.errors import BackendUnavailableError
from backbay.ops.op_declaration import OPS
from backbay.types.backend_declarations import Level

from .ops import declared_level
from .output import add_json, note, say, say_json, table, timeout_seconds


def add_arguments(parser: ArgumentParser) -> None:
    add_json(parser)
    add_timeout(parser)
    anew, readme = (
        "try each backend again, although a result is kept",
        "print the README's table; no backend is tried",
    )
    parser.add_argument("--refresh", action="store_true", help=anew)
    parser.add_argument("--markdown", action="store_true", help=readme)


def add_timeout(parser: ArgumentParser) -> None:
    what = "the time that each backend has to answer (%(default)g)"
    parser.add_argument("--timeout", type=timeout_seconds, default=TIMEOUT, metavar="SECONDS", help=what)


def run(args: Namespace) -> int:
    if args.markdown:
        say(backends_table())
        return 0
    probed = sort_results(probe_all(backends().values(), args.timeout, again=args.refresh))
    if args.json:
        say_json([as_dict(result) for result in probed])
    elif not probed:
        say("no backend is installed")
    else:
        titles = "backend", "distribution", "works", "devices", "why not"
        say(table(titles, [_row(result) for result in probed]))
    return 0 if any(result.works for result in probed) else 1


def _row(result: ProbeResult) -> tuple[str, ...]:
    devices = ", ".join(device.id for device in result.devices)
    works = "yes" if result.works else "no"
    return result.entry.name, version_of(result.entry), works, devices, result.reason


def backends_table() -> str:
    """The README's table in Markdown: each installed backend's description, and the numbers of its ops by level."""
    rows = [
        "| backend | what it is | kernels | composites of core | unsupported |",
        "|---|---|---:|---:|---:|",
    ]
    for entry in backends().values():
        try:
            kind = entry.load()
        except BackendUnavailableError as error:
            note(f"left out: {error}")
            continue
        levels = Counter(declared_level(op, set(kind.kernels)) for op in OPS.values())
        counts = (levels[level] for level in (Level.KERNEL, Level.COMPOSITE, Level.NONE))
        what = (kind.__doc__ or "").partition("\n")[0]
        rows.append(f"| `{entry.name}` | {what} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows)


def as_dict(result: ProbeResult) -> dict[str, Any]:
    fields = asdict(result)
    return {**fields.pop("entry"), "works": result.works, **fields}
