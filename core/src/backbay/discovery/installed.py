"""Installed backends: the metadata of all are read at once, the code of one is imported when it is asked for."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import BackendUnavailableError, UnknownBackendError, describe
from ..memory.starvation import raise_if_starved
from .entry_points import Declared, conflict, declared

if TYPE_CHECKING:
    from ..backend.backend import Backend

GROUP = "backbay.backends"


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
        from .registration import backend_class, class_at

        origin = f"{self.distribution} {self.version}"
        if self.rivals:
            raise BackendUnavailableError(conflict(f"backend {self.name!r}", (origin, *self.rivals)))
        try:
            if self.distribution:
                plugin = Declared(self.name, self.module, self.distribution, self.version).load()
                found = backend_class(plugin, self.name)
            else:
                found = class_at(self.module)
        except (Exception, SystemExit) as error:
            raise_if_starved(error, f"importing backend {self.name!r}")
            whose = f" of {origin}" if self.distribution else ""
            raise BackendUnavailableError(f"backend {self.name!r}{whose}: {describe(error)}") from error
        if found.name == "unnamed":
            found.name = self.name  # errors of its constructor then show this name
        return found


LONGEST_TRIAL = 3600.0  # seconds


def trial_seconds(kind: type[Backend]) -> float:
    """The seconds that a backend's first start may take beyond the usual, as far as a probe and the suite grant them."""
    return min(max(float(kind.trial_seconds()), 0.0), LONGEST_TRIAL)


def backends() -> dict[str, BackendEntry]:
    """The installed backends by name. This reads metadata and imports no plugin."""
    return {
        name: BackendEntry(
            name, first.distribution, first.version, first.value, tuple(point.origin for point in others)
        )
        for name, (first, *others) in declared(GROUP).items()
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
