"""The lab: an open backend of the class under test, and fresh backends for scenarios."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import backbay
from backbay import Backend, BackendParams, ContractVersion, Debug
from backbay.discovery import entry
from backbay.plugin import Node

from .extensions import load_extensions

GUARDED = BackendParams(num_threads=2, debug=Debug(poison=True, guard_bytes=64))


class Lab:
    """Backends of one class; `backend` is shared, has poison and guard zones, and is opened anew after a fault."""

    def __init__(
        self,
        open_backend: Callable[[BackendParams, Path | None], Backend],
        name: str,
        spec: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.spec, self.options = spec, options or {}  # what another process opens the same backend with
        self._open = open_backend
        self.model_calls: dict[str, list[Node]] = {}  # by op: the calls of the model that a run imitates
        self._backend: Backend | None = None

    @property
    def backend(self) -> Backend:
        if self._backend is None or self._backend.closed:
            self._backend = self._open(GUARDED, None)
        return self._backend

    def fresh(self, model: Path | None = None, **params: Any) -> Backend:
        """Open another backend, with the weights of a file if given; the caller closes it."""
        return self._open(BackendParams(**{"num_threads": 2, "debug": GUARDED.debug, **params}), model)

    def through(self, change: Callable[[Backend], Backend]) -> Lab:
        """A lab of the same class, each of whose backends is changed when it is opened."""
        return Lab(lambda params, model: change(self._open(params, model)), self.name)

    def facts(self) -> dict[str, Any]:
        """The facts about the backend for its certificate."""
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
        """Close the shared backend, in whatever state a fault left it."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()


def lab_for(backend: str | type[Backend], options: Mapping[str, Any] | None = None) -> Lab:
    """A lab for an installed backend's name, `module:Class`, or a class."""
    kind = entry(backend).load() if isinstance(backend, str) and ":" in backend else backend
    name = kind if isinstance(kind, str) else kind.__name__
    spec = backend if isinstance(backend, str) else ""
    return Lab(lambda params, model: backbay.open(model, kind, _with(params, options)), name, spec, options)


def _with(params: BackendParams, options: Mapping[str, Any] | None) -> BackendParams:
    return replace(params, options={**options, **params.options}) if options else params
