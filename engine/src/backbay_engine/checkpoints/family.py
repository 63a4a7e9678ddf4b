"""A family of models: how its configuration and its weights become those of a model file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from .arrays import LazyArray
from .settings import Keys, Settings

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
    """

    architecture: str
    keys: Callable[[Settings], Keys] = lambda _: {}
    changes: Mapping[str, Change] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    further: Callable[[Settings, LazyArray], Arrays] = lambda _settings, _beside: {}
    prefix: str = ""
    prepare: Callable[[Arrays, Settings], Arrays] = lambda arrays, _: arrays

    def renamed(self, name: str) -> str:
        for pattern, replacement in self.names.items():
            name = re.sub(pattern, replacement, name)
        return name

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

# -- changes that families share -----------------------------------------------------------------------------


def left_out(_array: LazyArray, _settings: Settings) -> None:
    return None


def plus_one(array: LazyArray, _settings: Settings) -> LazyArray:
    """The weight of a norm that multiplies by 1 + weight."""
    return array.map(lambda numbers: numbers + np.float32(1))


def interleaved(array: LazyArray, heads: int) -> LazyArray:
    """Rows whose halves of each head rotate together, as pairs of neighbours."""
    head = array.shape[0] // heads
    order = np.arange(heads * head).reshape(heads, 2, head // 2).swapaxes(1, 2).reshape(-1)
    return array.take(order)


def interleaved_query(array: LazyArray, settings: Settings) -> LazyArray:
    return interleaved(array, settings.heads)


def interleaved_key(array: LazyArray, settings: Settings) -> LazyArray:
    return interleaved(array, settings.kv_heads)


INTERLEAVED: Mapping[str, Change] = {
    r"q_proj\.(weight|bias)$": interleaved_query,
    r"k_proj\.(weight|bias)$": interleaved_key,
}


def transposed(array: LazyArray, _settings: Settings) -> LazyArray:
    return array.transposed()


def negative_exponential(array: LazyArray, _settings: Settings) -> LazyArray:
    return array.map(lambda numbers: -np.exp(numbers.astype(np.float64)))


def squeezed(array: LazyArray, _settings: Settings) -> LazyArray:
    """Without the dimensions of one element, except the first."""
    return array.reshape(array.shape[0], *(n for n in array.shape[1:] if n != 1))


def halves(*names: str) -> Change:
    """The two halves of the rows, or of each expert's rows, under two names."""

    def change(array: LazyArray, _settings: Settings) -> Mapping[str, LazyArray]:
        if len(array.shape) == 3:
            half = array.shape[1] // 2
            parts = [array.inner(0, half), array.inner(half, 2 * half)]
        else:
            half = array.shape[0] // 2
            parts = array.split(half, half)
        return dict(zip(names, parts, strict=True))

    return change
