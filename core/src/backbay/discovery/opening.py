"""Opening a backend: from a name and a model file to an object that computes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..backend.backend import Backend
from ..backend.processes.forks import without_forks
from ..errors import BackendUnavailableError
from ..memory.starvation import naming_limits, raise_if_starved
from ..types.params import BackendParams
from .choice import choose
from .model_files import open_model
from .registration import check_class, describe

if TYPE_CHECKING:
    from ..gguf import ModelFile


@naming_limits("opening a backend")
@without_forks()
def open(
    path: str | os.PathLike[str] | ModelFile | None = None,
    backend: str | type[Backend] | None = None,
    params: BackendParams | None = None,
) -> Backend:
    """Open a backend, with the model in the file at `path`, see `open_model`, or without a model.

    `path` may be a model file that `backbay.gguf.open` has opened, perhaps with some of its tensors only; the backend
    closes it.

    `backend` is the name of an installed backend, "auto", a subclass of Backend, or the name of one as `module:Class`.
    "auto" tries each installed backend in a child process, and takes the best that works, see `choose`. None takes
    the name in the environment variable BACKBAY_BACKEND; if it is not set, "auto".

    Raises UnknownBackendError, BackendUnavailableError, ModelFileError, OptionError or NoMemoryError.
    """
    given = params if params is not None else BackendParams()
    model = None if path is None else _model_file(path)  # first: trying backends takes longer
    try:
        if isinstance(backend, type):
            return _opened(check_class(backend), _own_name(backend), model, given)
        return _chosen(backend, model, given)
    except BaseException:
        if model is not None:
            model.close()
        raise


def _chosen(backend: str | None, model: ModelFile | None, params: BackendParams) -> Backend:
    entry = choose(backend).entry
    try:
        return _opened(entry.load(), entry.name, model, params)
    except BackendUnavailableError:
        from .probe import forget  # it worked when it was tried, perhaps hours ago

        forget(entry)
        raise


def _opened(kind: type[Backend], name: str, model: ModelFile | None, params: BackendParams) -> Backend:
    try:
        opened = kind(model, params)
    except BaseException as error:
        raise_if_starved(error, f"opening backend {name!r}")
        if isinstance(
            error, (ImportError, OSError)
        ):  # a library that the plugin needs is missing, or cannot be loaded
            raise BackendUnavailableError(f"backend {name!r}: {describe(error)}") from error
        raise
    opened.name = name
    return opened


def _model_file(path: str | os.PathLike[str] | ModelFile) -> ModelFile:
    from .. import gguf  # graphs without a model never need it

    return path if isinstance(path, gguf.ModelFile) else open_model(path)


def _own_name(kind: type[Backend]) -> str:
    """The name that a class states; if it only inherits a name, the name of the class."""
    return str(vars(kind).get("name", kind.__name__))
