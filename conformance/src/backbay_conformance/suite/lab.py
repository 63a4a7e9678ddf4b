"""The lab: an open backend of the class under test, and fresh ones for scenarios."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import backbay
from backbay import Backend, BackendParams, ContractVersion, Debug
from backbay.discovery import entry

from .extensions import load_extensions

GUARDED = BackendParams(num_threads=2, debug=Debug(poison=True, guard_bytes=64))


class Lab:
    """Backends of one class; `backend` is opened once, with poison and guard zones, and again after a fault."""

    def __init__(self, open_backend: Callable[[BackendParams, Path | None], Backend], name: str) -> None:
        self.name = name
        self._open = open_backend
        self.standing: dict[str, bool] = {}  # ops by name, and whether they are right by themselves
        self._backend: Backend | None = None

    @property
    def backend(self) -> Backend:
        if self._backend is None or self._backend.closed:
            self._backend = self._open(GUARDED, None)
        return self._backend

    def fresh(self, model: Path | None = None, **params: Any) -> Backend:
        """A backend of the caller's own, who closes it; with the weights of a file, if one is named."""
        return self._open(BackendParams(**{"num_threads": 2, "debug": GUARDED.debug, **params}), model)

    def facts(self) -> dict[str, Any]:
        """The facts about a backend on its certificate."""
        backend = self.backend
        named = backbay.backends().get(self.name)
        return {
            "backend": f"{named.distribution} {named.version}" if named is not None else self.name,
            "devices": [f"{device.id} {device.name}" for device in backend.devices()],
            "deterministic": backend.deterministic,
            "contract": str(ContractVersion.parse(backend.contract_version)),
            "python": platform.python_version(),
            "machine": platform.machine(),
            **({"scenarios": list(others)} if (others := load_extensions()) else {}),
        }

    def discard(self) -> None:
        """Close the shared backend, whatever state a fault left it in."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()


def lab_for(backend: str | type[Backend], options: Mapping[str, Any] | None = None) -> Lab:
    """A lab for an installed backend by its name, for `module:Class`, or for a class itself."""
    kind = entry(backend).load() if isinstance(backend, str) and ":" in backend else backend
    name = kind if isinstance(kind, str) else kind.__name__
    return Lab(lambda params, model: backbay.open(model, kind, _with(params, options)), name)


def _with(params: BackendParams, options: Mapping[str, Any] | None) -> BackendParams:
    return replace(params, options={**options, **params.options}) if options else params
