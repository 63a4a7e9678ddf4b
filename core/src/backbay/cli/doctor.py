"""What works on this machine, what does not and why, and which backend is taken.

Each installed backend is tried in a process of its own. The exit status is 0 if all of them work, 3 if a backend
can be taken though another one does not work, and 1 if none can be taken.
"""

from __future__ import annotations

import os
import platform
import sys
from argparse import ArgumentParser, Namespace

import numpy as np

import backbay
from backbay.discovery.installed import backends
from backbay.discovery.opening import VARIABLE, choose
from backbay.discovery.probe import Verdict, probe_all, ranked
from backbay.errors import BackbayError
from backbay.memory.report import human_bytes
from backbay.types.params import DeviceInfo

from .listing import add_timeout, as_dict
from .output import add_json, say, say_json, table

NONE_USABLE, SOME_BROKEN = 1, 3


def add_arguments(parser: ArgumentParser) -> None:
    add_json(parser)
    add_timeout(parser)


def run(args: Namespace) -> int:
    verdicts = ranked(probe_all(backends().values(), args.timeout))
    name, usable, said = _choice(verdicts)
    if args.json:
        listed = [as_dict(verdict) for verdict in verdicts]
        say_json({"system": _system(), "backends": listed, "choice": name, "usable": usable, "reason": said})
    else:
        _print(verdicts, f"backbay.open() {'takes' if usable else 'fails:'} {said}")
    if not usable:
        return NONE_USABLE
    return 0 if all(verdict.works for verdict in verdicts) else SOME_BROKEN


def _choice(verdicts: list[Verdict]) -> tuple[str | None, bool, str]:
    """The backend that would be taken, whether it works, and why it is the one."""
    try:
        choice = choose()
    except BackbayError as error:
        return None, False, str(error)
    (taken,) = [verdict for verdict in verdicts if verdict.entry == choice.entry] or probe_all([choice.entry])
    return choice.name, taken.works, str(choice) + (f", but {taken.reason}" if not taken.works else "")


def _system() -> dict[str, str | None]:
    return {
        "python": f"{platform.python_version()} at {sys.executable}",
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
        "numpy": np.__version__,
        "contract": str(backbay.CONTRACT_VERSION),
        VARIABLE: os.environ.get(VARIABLE),
    }


def _print(verdicts: list[Verdict], conclusion: str) -> None:
    say(table(("", ""), [(key, value or "not set") for key, value in _system().items()]))
    for verdict in verdicts:
        say()
        _print_verdict(verdict)
    say()
    say(conclusion)


def _print_verdict(verdict: Verdict) -> None:
    entry = verdict.entry
    say(
        f"{entry.name} ({entry.distribution} {entry.version}): {'works' if verdict.works else 'does not work'}"
    )
    rows = [("  why", verdict.reason)] if not verdict.works else []
    rows += [("  device", _device(device)) for device in verdict.devices]
    rows += [(f"  {key}", value) for key, value in verdict.details.items()]
    if not verdict.works and verdict.output:
        rows.append(("  output", verdict.output))
    if rows:
        say(table(("", ""), rows))


def _device(device: DeviceInfo) -> str:
    sizes = [
        f"{human_bytes(size)} {what}"
        for what, size in (("in all", device.total_memory), ("free", device.free_memory))
        if size is not None
    ]
    return ", ".join([f"{device.id} {device.name}", *(["GPU"] if device.is_gpu else []), *sizes])
