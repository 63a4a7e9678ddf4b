"""Which backends are installed: their metadata at once, their code one at a time and only when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BackendUnavailableError, UnknownBackendError
from .entry_points import Declared, conflict, declared

if TYPE_CHECKING:
    from ..backend.backend import Backend

GROUP = "backbay.backends"


@dataclass(frozen=True)
class BackendEntry:
    """An installed backend, or the class that `module:Class` names. Nothing of it is imported before `load`.

    `module` is what its entry point names. `rivals` are other distributions that claim the same name: as long as
    there are any, none of them can be loaded. A class that is named by itself has no distribution.
    """

    name: str
    distribution: str
    version: str
    module: str
    rivals: tuple[str, ...] = ()

    def load(self) -> type[Backend]:
        """Import the plugin and return its class; BackendUnavailableError says why it cannot be used."""
        from .registration import backend_class, class_at, describe

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
            whose = f" of {origin}" if self.distribution else ""
            raise BackendUnavailableError(f"backend {self.name!r}{whose}: {describe(error)}") from error
        if found.name == "unnamed":
            found.name = self.name  # so that what its constructor says is about this name
        return found


def backends() -> dict[str, BackendEntry]:
    """The installed backends by name. Reads metadata, imports no plugin."""
    return {name: _entry(points) for name, points in declared(GROUP).items()}


def entry(name: str, *, asked_by: str = "") -> BackendEntry:
    """The backend of that name, or the class that `module:Class` names, which need not be installed.

    UnknownBackendError says the nearest names. `asked_by` says where the name is from.
    """
    if not isinstance(name, str):
        raise TypeError(f"a backend is a name or a subclass of Backend, not {name!r}")
    if ":" in name:
        return BackendEntry(name, "", "", name)
    installed = backends()
    if name not in installed:
        raise UnknownBackendError(name, installed, asked_by)
    return installed[name]


def _entry(points: list[Declared]) -> BackendEntry:
    first, *others = points
    rivals = tuple(point.origin for point in others)
    return BackendEntry(first.name, first.distribution, first.version, first.value, rivals)
