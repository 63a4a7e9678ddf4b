"""The commands of core, and of other packages, which declare them in the entry-point group backbay.commands."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import Any, Protocol

from backbay.discovery import Declared, conflict, declared
from backbay.discovery.registration import describe
from backbay.errors import BackbayError
from backbay.memory.starvation import raise_if_starved

GROUP = "backbay.commands"

CORE = {
    "list": ("listing", "the installed backends, whether they work, and on which devices"),
    "doctor": ("doctor", "which backends work on this machine, why the others do not, and which is taken"),
    "ops": ("ops", "the ops, and how each installed backend runs them"),
    "cache": ("cache", "what is kept between processes, such as results of trials, and removing it"),
    "new-backend": ("scaffold.new_backend", "a repository for a new backend, with kernels, tests and CI"),
    "inspect": ("inspection", "the contents of a model file: metadata and tensors"),
}


class Command(Protocol):
    """The module or object that an entry point of the group names. Its docstring is the command's help."""

    def add_arguments(self, parser: ArgumentParser, /) -> None:
        """Declare the arguments; the name `--debug` is reserved."""

    def run(self, args: Namespace, /) -> int:
        """Run the command, and return the exit status. A BackbayError becomes a line on stderr, and status 1."""
        ...


def installed() -> dict[str, str]:
    """The commands by name, each with a line of help. This reads metadata and sources, and imports no command."""
    theirs = {name: _line(points) for name, points in declared(GROUP).items()}
    return {
        **{name: what for name, (_, what) in CORE.items()},
        **{k: v for k, v in theirs.items() if k not in CORE},
    }


def _line(points: list[Declared]) -> str:
    """What a command does; where its package does not tell, or several declare it, whose it is."""
    summary = re.split("[:;] ", points[0].summary())[0] if len(points) == 1 else ""
    return (summary[:1].lower() + summary[1:]) or f"from {' and '.join(point.origin for point in points)}"


def find(name: str) -> Command | None:
    """Import and return the command with this name; BackbayError if it is broken, or if two packages declare it."""
    if name in CORE:
        return _checked(import_module(f"{__package__}.{CORE[name][0]}"), name)
    points = declared(GROUP).get(name)
    if points is None:
        return None
    if len(points) > 1:
        raise BackbayError(conflict(f"command {name!r}", (point.origin for point in points)))
    return _checked(_imported(points[0]), f"{name} of {points[0].origin}")


def _imported(point: Declared) -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        what = f"command {point.name!r} of {point.origin}"
        raise_if_starved(error, f"importing {what}")
        raise BackbayError(f"{what} cannot be imported: {describe(error)}") from error


def _checked(command: Any, what: str) -> Command:
    missing = [part for part in ("add_arguments", "run") if not callable(getattr(command, part, None))]
    if missing:
        raise BackbayError(f"command {what}: {command!r} has no {' and no '.join(missing)}")
    return command  # type: ignore[no-any-return]
