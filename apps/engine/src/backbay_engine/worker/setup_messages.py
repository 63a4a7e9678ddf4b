"""The first messages: the model that a worker is to open, and that model as its host knows it. They can be pickled."""

from __future__ import annotations

import os
import pathlib
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np

from backbay import Backend, BackendParams, OptionError
from backbay.gguf import Config, Strings

from ..local.port import LocalPort
from ..port.contract import ModelFacts
from ..port.options import NAMES, LoadOptions, Path
from ..text.tokenizers import Tokenizer, tokenizer_from_gguf
from .reports import LogLevels

OF_TOKENIZERS = ("tokenizer.", "general.architecture")


@dataclass(frozen=True)
class ImportableBackend:
    """A backend given as a class, by the place from which another process can import it."""

    module: str
    name: str

    def load(self) -> type[Backend]:
        try:
            kind: type[Backend] = getattr(import_module(self.module), self.name)
        except Exception as error:
            raise _not_importable(self.module, self.name, f": {error}") from error
        return kind


@dataclass(frozen=True)
class WorkerSetup:
    """The model that a worker opens, and how it logs."""

    path: Path
    backend: str | ImportableBackend
    options: LoadOptions
    levels: LogLevels
    with_vocabulary: bool = True


def sendable_option(value: Any) -> Any:
    """An option in a form that another process takes: no path, no class of a backend, no view of a mapping."""
    if isinstance(value, type):
        return import_place(value)
    if isinstance(value, BackendParams):
        return replace(value, max_memory=dict(value.max_memory), options=dict(value.options))
    if isinstance(value, dict):
        return {name: sendable_option(each) for name, each in value.items()}
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def received_option(value: Any) -> Any:
    """An option as a worker takes it from its host."""
    return value.load() if isinstance(value, ImportableBackend) else value


def map_options(options: LoadOptions, change: Callable[[Any], Any]) -> LoadOptions:
    """The options, each changed."""
    return replace(options, **{name: change(getattr(options, name)) for name in NAMES})


def import_place(kind: type[Backend]) -> ImportableBackend:
    """Where a worker finds a class; OptionError if it cannot import it."""
    module, name = kind.__module__, kind.__qualname__
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not kind:
        raise _not_importable(module, name)
    return ImportableBackend(module, name)


def working_folder() -> str | None:
    """The folder that relative paths begin at, now and for later workers."""
    try:
        return os.fspath(pathlib.Path.cwd())
    except OSError:  # somebody removed it
        return None


def require_sendable(setup: WorkerSetup) -> None:
    try:
        pickle.dumps(setup)
    except Exception as error:
        raise OptionError(f"the parameters of a model with a worker must be picklable: {error}") from error


def _not_importable(module: str, name: str, why: str = "") -> OptionError:
    return OptionError(
        f"a worker must import the backend's class, and {module}.{name} cannot be imported{why}; "
        "define it at the top of a module on sys.path, or load the model without worker=True"
    )


@dataclass(frozen=True)
class ModelDescription:
    """A model, for other processes.

    vocabulary  the metadata of the tokenizer, no value a view of the file; None if the file has no vocabulary, or if
                the host has it
    offsets     the places of the values in the file
    """

    facts: ModelFacts
    vocabulary: dict[str, Any] | None = None
    offsets: dict[str, int] = field(default_factory=dict)

    def tokenizer(self, path: Path) -> Tokenizer | None:
        """A tokenizer of one's own. It is no view of the model file, whose end must not be the host's."""
        if self.vocabulary is None:
            return None
        return tokenizer_from_gguf(Config(self.vocabulary, path=path, offsets=self.offsets))


def describe_model(port: LocalPort) -> ModelDescription:
    if port.tokenizer is None:
        return ModelDescription(port.facts)
    config = port.backend.config
    vocabulary, offsets = dict[str, Any](), dict[str, int]()
    for key in config:
        if key.startswith(OF_TOKENIZERS):
            value, offset = config[key], config.offset(key)
            if isinstance(value, Strings):
                value = list(value)
            vocabulary[key] = np.array(value) if isinstance(value, np.ndarray) else value
            if offset is not None:
                offsets[key] = offset
    return ModelDescription(port.facts, vocabulary, offsets)
