"""A family of models: how its configuration and its weights become those of a model file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..arrays import LazyArray
from .config_json import Keys, Settings

Change: TypeAlias = Callable[[LazyArray, Settings], LazyArray | Mapping[str, LazyArray] | None]
"""What becomes of an array: another one, several with replacements of the part of its name, or None: it is left out."""
Arrays: TypeAlias = dict[str, LazyArray]


@dataclass(frozen=True)
class Family:
    """How models of one class of transformers become those of an architecture.

    keys        keys beyond the usual ones
    changes     what happens to arrays with a pattern in their names; the first pattern that is found counts
    names       replacements in names, by patterns, before the gguf package's table is asked
    further     tensors that the configuration tells, by their names in a model file
    prefix      what stands before the names that the table knows
    prepare     changes all arrays at once, where one change needs several
    usual       the configuration with values under the names that other models have
    tensors     a pattern of the checkpoint's names that belong to it; without it, all but those of encoders
    predicts    whether blocks that predict further tokens are kept, as llama.cpp's converter keeps them
    """

    architecture: str
    keys: Callable[[Settings], Keys] = lambda _: {}
    changes: Mapping[str, Change] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    further: Callable[[Settings, LazyArray], Arrays] = lambda _settings, _beside: {}
    prefix: str = ""
    prepare: Callable[[Arrays, Settings], Arrays] = lambda arrays, _: arrays
    usual: Callable[[Settings], Settings] = lambda settings: settings
    tensors: str = ""
    predicts: bool = False

    def renamed(self, name: str) -> str:
        for pattern, replacement in self.names.items():
            name = re.sub(pattern, replacement, name)
        return name

    def change_of(self, name: str) -> Change | None:
        """What happens to an array of this name."""
        return next((change for pattern, change in self.changes.items() if re.search(pattern, name)), None)

    def changed(self, name: str, array: LazyArray, settings: Settings) -> Arrays:
        """The arrays that one array becomes."""
        for pattern, change in self.changes.items():
            match = re.search(pattern, name)
            if match is None:
                continue
            made = change(array, settings)
            if made is None:
                return {}
            if isinstance(made, LazyArray):
                return {name: made}
            before, after = name[: match.start()], name[match.end() :]
            return {f"{before}{match.expand(part)}{after}": each for part, each in made.items()}
        return {name: array}


Families: TypeAlias = Mapping[str, Family | Callable[[Settings], Family]]
"""By the names of transformers' classes; a function chooses where the configuration decides."""
