"""What is installed: entry points and backends are read as metadata, the code of one is imported when it is asked for."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backend.backend import Backend
from ..errors import BackbayError, BackendUnavailableError, UnknownBackendError, describe_error
from ..memory.host_memory import naming_limits, raise_if_starved
from .registration import backend_class, class_at, hook_result

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


GROUP = "backbay.backends"
ADAPTERS = "backbay.adapters"
"""The group of backends that need an option to run at all: opened by name, never chosen or listed."""
LONGEST_TRIAL = 3600.0  # seconds


@dataclass(frozen=True)
class PluginEntry:
    """An entry point of a plugin, and its distribution; `load` imports what it names."""

    name: str
    value: str
    distribution: str
    version: str

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}"

    def load(self) -> Any:
        """Import and return the object that it names; errors of the import pass through unchanged."""
        from importlib.metadata import EntryPoint

        return EntryPoint(self.name, self.value, "").load()

    def summary(self) -> str:
        """The first line of its module's docstring, read from the source without an import; empty if there is none."""
        package, *inner = self.value.partition(":")[0].strip().split(".")
        try:
            spec = find_spec(package)  # of a name without a dot: this imports nothing
            if spec is None or spec.origin is None:
                return ""
            source = Path(spec.origin)
            if inner:
                place = source.parent.joinpath(*inner)
                source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            text = ast.get_docstring(ast.parse(source.read_text("utf-8"))) or ""
        except (ImportError, OSError, ValueError, SyntaxError):
            return ""
        return text.partition("\n")[0].removesuffix(".")


def conflict(what: str, origins: Iterable[str]) -> str:
    return f"{what} is provided by {' and '.join(origins)}; uninstall all but one"


def load_declared(hook: str, what: str, points: Sequence[PluginEntry]) -> Any:
    """Load what the one entry point of a name adds: the result of the hook of its plugin.

    BackbayError if several distributions declare the name, or if the plugin cannot be imported, or its hook fails.
    """
    point, *others = points
    if others:
        raise BackbayError(conflict(what, [point.origin for point in points]))
    try:
        return hook_result(hook, point.load(), point.name)
    except (Exception, SystemExit) as error:
        what = f"{what} of {point.origin}"
        raise_if_starved(error, f"loading {what}")
        remedy = f"fix or uninstall {point.distribution}"
        raise BackbayError(f"{what} cannot be loaded: {describe_error(error)}; {remedy}") from error


def declared(group: str) -> dict[str, list[PluginEntry]]:
    """All entry points of a group, sorted by name; several if distributions declare the same name."""
    return {name: [*points] for name, points in _declared(group, _places()).items()}


def _places() -> tuple[tuple[str, int], ...]:
    """The folders in which distributions are installed, and when one was last added or removed."""
    places = []
    for path in sys.path:
        with suppress(OSError, ValueError):  # it may be missing
            places.append((path, Path(path).stat().st_mtime_ns))
    return tuple(places)


@lru_cache(maxsize=64)
def _declared(group: str, places: tuple[tuple[str, int], ...]) -> dict[str, list[PluginEntry]]:
    """What `declared` gives for these places; to look there reads files of each distribution."""
    found: dict[str, list[PluginEntry]] = {}
    with naming_limits("looking for plugins"):
        # importlib.metadata would find nothing if no file can be opened
        os.close(os.open(os.devnull, os.O_RDONLY))
    for point in sorted(_points(group), key=lambda point: point.name):
        origin = "unknown", "unknown"
        try:
            origin = origin if point.dist is None else (point.dist.name, point.dist.version)
        except Exception:  # noqa: BLE001  metadata that are no text
            origin = "unreadable", "unknown"
        found.setdefault(point.name, []).append(PluginEntry(point.name, point.value, *origin))
    return found


def _points(group: str) -> Iterable[EntryPoint]:
    from importlib.metadata import distributions, entry_points

    with suppress(Exception):  # one unreadable entry_points.txt must not hide all others
        return entry_points(group=group)
    found: dict[str, Iterable[EntryPoint]] = {}
    for distribution in distributions():
        with suppress(Exception):  # its metadata are unreadable
            # Import finds the first on sys.path.
            found.setdefault(distribution.name, distribution.entry_points.select(group=group))
    return [point for points in found.values() for point in points]


@dataclass(frozen=True)
class BackendEntry:
    """An installed backend, or a class given as `module:Class`. `load` imports it; before, nothing of it is imported.

    `module` is the value of its entry point. `rivals` are other distributions that declare the same name: while there
    is one, none of them can be loaded. A class given as `module:Class` has an empty distribution.
    """

    name: str
    distribution: str
    version: str
    module: str
    rivals: tuple[str, ...] = ()

    def load(self) -> type[Backend]:
        """Import the plugin and return its class; BackendUnavailableError, with the reason, if it cannot be used."""
        origin = f"{self.distribution} {self.version}"
        if self.rivals:
            raise BackendUnavailableError(conflict(f"backend {self.name!r}", (origin, *self.rivals)))
        try:
            if self.distribution:
                plugin = PluginEntry(self.name, self.module, self.distribution, self.version).load()
                found = backend_class(plugin, self.name)
            else:
                found = class_at(self.module)
        except (Exception, SystemExit) as error:
            raise_if_starved(error, f"importing backend {self.name!r}")
            whose = f" of {origin}" if self.distribution else ""
            raise BackendUnavailableError(f"backend {self.name!r}{whose}: {describe_error(error)}") from error
        if found.name == "unnamed":
            found.name = self.name  # errors of its constructor then show this name
        return found


def trial_seconds(kind: type[Backend], options: Mapping[str, Any] = {}) -> float:
    """The seconds that a backend's first start may take beyond the usual, as far as a probe and the suite grant them."""
    found = kind.trial_seconds(options) if options else kind.trial_seconds()  # older plugins take no options
    return min(max(float(found), 0.0), LONGEST_TRIAL)


def backends() -> dict[str, BackendEntry]:
    """The installed backends by name. This reads metadata and imports no plugin."""
    return _entries(GROUP)


def _entries(group: str) -> dict[str, BackendEntry]:
    return {
        name: BackendEntry(
            name, first.distribution, first.version, first.value, tuple(point.origin for point in others)
        )
        for name, (first, *others) in declared(group).items()
    }


def entry(name: str, *, asked_by: str = "") -> BackendEntry:
    """The installed backend with this name, or a class given as `module:Class`, which need not be installed.

    A module that is not found elsewhere may lie in the current folder, as for `python -m`, but not with `python -P`.
    UnknownBackendError, with the nearest names, if there is none. `asked_by` is the source of the name, for this error.
    """
    if not isinstance(name, str):
        raise TypeError(f"a backend is a name or a subclass of Backend, not {name!r}")
    if ":" in name:
        _search_current_folder(name.partition(":")[0].partition(".")[0])
        return BackendEntry(name, "", "", name)
    installed = backends()
    if name not in installed:
        installed |= _entries(ADAPTERS)
    if name not in installed:
        raise UnknownBackendError(name, installed, asked_by)
    return installed[name]


def _search_current_folder(module: str) -> None:
    """Let imports look into the current folder, last of all, if a module is there and nowhere else."""
    if not module or module in sys.modules or sys.flags.safe_path or find_spec(module) is not None:
        return
    with suppress(OSError):  # the folder is gone
        here = os.getcwd()  # noqa: PTH109
        if PathFinder.find_spec(module, [here]) is not None:
            sys.path.append(here)  # child processes get the path, too
