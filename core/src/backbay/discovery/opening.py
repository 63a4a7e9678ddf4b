"""Opening a backend by name, and the choice of a backend if no name is given."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..backend.backend import Backend
from ..errors import BackendUnavailableError
from ..types.params import BackendParams
from .installed import BackendEntry, backends, entry
from .registration import check_class, describe

if TYPE_CHECKING:
    from ..gguf import ModelFile

VARIABLE = "BACKBAY_BACKEND"
AUTO = "auto"


@dataclass(frozen=True)
class Choice:
    """The backend that `open` takes, with the reason; the other backends, each with the reason against it."""

    entry: BackendEntry
    reason: str
    passed_over: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return self.entry.name

    def __str__(self) -> str:
        others = "; ".join(f"not {name}: {reason}" for name, reason in self.passed_over)
        return f"{self.name}: {self.reason}" + (f" ({others})" if others else "")


def open(
    path: str | os.PathLike[str] | None = None,
    backend: str | type[Backend] | None = None,
    params: BackendParams | None = None,
) -> Backend:
    """Open a backend, with the model in the file at `path`, or without a model.

    `backend` is the name of an installed backend, "auto", a subclass of Backend, or the name of one as `module:Class`.
    "auto" tries each installed backend in a child process, and takes the best that works, see `choose`. None takes
    the name in the environment variable BACKBAY_BACKEND; if it is not set, "auto".

    Raises UnknownBackendError, BackendUnavailableError, ModelFileError, OptionError or NoMemoryError.
    """
    if isinstance(backend, type):
        kind, name = check_class(backend), _own_name(backend)
    else:
        chosen = choose(backend).entry
        kind, name = chosen.load(), chosen.name
    model = None if path is None else _model_file(path)
    try:
        opened = kind(model, params if params is not None else BackendParams())
    except BaseException as error:
        if model is not None:
            model.close()
        if isinstance(
            error, (ImportError, OSError)
        ):  # a library that the plugin needs is missing, or cannot be loaded
            raise BackendUnavailableError(f"backend {name!r}: {describe(error)}") from error
        raise
    opened.name = name
    return opened


def _model_file(path: str | os.PathLike[str]) -> ModelFile:
    from .. import gguf  # graphs without a model never need it

    return gguf.open(path)


def choose(backend: str | None = None) -> Choice:
    """The backend that `open` takes for this name, and the reason.

    "auto" takes the best of the backends that work: one that states a `Backend.priority` before one that does not, then
    one with a GPU before one without, then the highest priority, then the first name by alphabet. If none works,
    BackendUnavailableError gives the reason for each.
    """
    if backend is not None and backend != AUTO:
        return Choice(entry(backend), "it was asked for")
    wanted = os.environ.get(VARIABLE, "") if backend is None else ""
    if wanted and wanted != AUTO:
        return Choice(entry(wanted, asked_by=VARIABLE), f"{VARIABLE} asks for it")
    return _best()


def _best() -> Choice:
    from .probe import ProbeResult, probe_all, ranked  # subprocess takes longer to import than most of core

    installed = backends()
    if not installed:
        raise BackendUnavailableError("no backend is installed; install one, for example backbay-cpu-ref")
    first, *others = ranked(probe_all(installed.values()))
    if not first.works:
        reasons = "; ".join(f"{result.entry.name}: {result.reason}" for result in (first, *others))
        raise BackendUnavailableError(f"no installed backend works: {reasons}")

    def why_not(other: ProbeResult) -> str:
        if not other.works:
            return other.reason
        if other.priority is None and first.priority is not None:
            return "it states no priority"
        if first.has_gpu and not other.has_gpu:
            return "it has no GPU"
        return "its name comes later" if other.priority == first.priority else "its priority is lower"

    gpus = ", ".join(device.id for device in first.devices if device.is_gpu)
    reason = f"it works, on {gpus}" if gpus else "it works"
    return Choice(first.entry, reason, tuple((other.entry.name, why_not(other)) for other in others))


def _own_name(kind: type[Backend]) -> str:
    """The name that a class states; if it only inherits a name, the name of the class."""
    return str(vars(kind).get("name", kind.__name__))
