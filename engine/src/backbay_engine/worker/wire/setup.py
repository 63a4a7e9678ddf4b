"""The first message of a host to its worker: the model to open. It can be pickled."""

from __future__ import annotations

import os
import pathlib
import pickle
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from backbay import Backend, BackendParams, OptionError

from ...port.guessing import GuessOptions
from ...port.keeping import KeepOptions
from ...port.sight import SightOptions
from ...port.sizes import Path, Sizes
from .log_records import Levels


@dataclass(frozen=True)
class BackendClass:
    """A backend given as a class, by the place from which another process can import it."""

    module: str
    name: str

    def found(self) -> type[Backend]:
        try:
            kind: type[Backend] = getattr(import_module(self.module), self.name)
        except Exception as error:
            raise _not_importable(self.module, self.name, f": {error}") from error
        return kind


@dataclass(frozen=True)
class Setup:
    """The model that a worker opens, and how it logs."""

    path: Path
    backend: str | BackendClass
    params: BackendParams
    sizes: Sizes
    levels: Levels
    sight: SightOptions
    guess: GuessOptions
    keep: KeepOptions
    with_vocabulary: bool = True


def importable(kind: type[Backend]) -> BackendClass:
    """Where a worker finds a class; OptionError if it cannot import it."""
    module, name = kind.__module__, kind.__qualname__
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not kind:
        raise _not_importable(module, name)
    return BackendClass(module, name)


def sendable_backend(backend: Any) -> Any:
    """A backend's name, or where a worker finds its class; None stays None."""
    return importable(backend) if isinstance(backend, type) else backend


def plain_path(path: Any) -> Any:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def plain_params(params: BackendParams) -> BackendParams:
    """Parameters that can be sent: mappings are made dictionaries."""
    return replace(params, max_memory=dict(params.max_memory), options=dict(params.options))


def sendable_sight(sight: SightOptions) -> SightOptions:
    """How the worker sees."""
    return replace(
        sight,
        projector=plain_path(sight.projector),
        encoder_backend=sendable_backend(sight.encoder_backend),
        encoder_params=None if sight.encoder_params is None else plain_params(sight.encoder_params),
    )


def sendable_guess(guess: GuessOptions | None) -> GuessOptions:
    """How the worker guesses tokens."""
    given = guess or GuessOptions()
    return replace(
        given,
        draft=plain_path(given.draft),
        draft_backend=sendable_backend(given.draft_backend),
        draft_params=None if given.draft_params is None else plain_params(given.draft_params),
    )


def sendable_keep(keep: KeepOptions | None) -> KeepOptions:
    """Where the worker keeps beginnings of prompts."""
    given = keep or KeepOptions()
    return replace(given, cache_dir=plain_path(given.cache_dir))


def working_folder() -> str | None:
    """The folder that relative paths begin at, now and for later workers."""
    try:
        return os.fspath(pathlib.Path.cwd())
    except OSError:  # somebody removed it
        return None


def require_sendable(setup: Setup) -> None:
    try:
        pickle.dumps(setup)
    except Exception as error:
        raise OptionError(f"the parameters of a model with a worker must be picklable: {error}") from error


def _not_importable(module: str, name: str, why: str = "") -> OptionError:
    return OptionError(
        f"a worker must import the backend's class, and {module}.{name} cannot be imported{why}; "
        "define it at the top of a module on sys.path, or load the model without worker=True"
    )
