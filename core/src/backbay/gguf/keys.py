"""Declared keys: each name stands once, beside its type and the values that are possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Generic, TypeVar, final, overload

import numpy as np
import numpy.typing as npt

from backbay.errors import ModelFileError

from .config import Config, as_bool, as_float, as_floats, as_int, as_ints, as_string, as_strings

T = TypeVar("T")
D = TypeVar("D")

LARGEST_COUNT = (1 << 31) - 1  # of whatever the metadata count: C libraries take 32 bits
_LARGEST_NUMBER: Final = float(np.finfo(np.float32).max)  # ops compute with f32


@final
@dataclass(frozen=True, eq=False)
class Key(Generic[T]):
    """A key of the metadata. `of` gives a possible value; any other value is a ModelFileError."""

    name: str
    expected: str
    convert: Callable[[object], T | None]  # None for a value of another type
    first_wrong: Callable[[T], int | None]  # the index of the first impossible element; 0 for a wrong scalar

    @overload
    def of(self, config: Config, *, layer: int | None = None) -> T: ...
    @overload
    def of(self, config: Config, default: D, *, layer: int | None = None) -> T | D: ...
    def of(self, config: Config, default: Any = ..., *, layer: int | None = None) -> Any:
        """The value in a file; without a default, the file must have the key.

        With a layer, the file may have an array with an element for each layer.
        """
        full = config.resolve(self.name)
        if full is None:
            if default is ...:
                raise config.missing(self.name)
            return default
        value, index = config[full], None
        if layer is not None and isinstance(value, np.ndarray | list | tuple):
            if layer >= len(value):
                raise self.refuse(config, f"a number for layer {layer}")
            value, index = _element(value, layer), layer
        converted = self.convert(value)
        if converted is None:
            raise self.refuse(config, self.expected, index)
        wrong = self.first_wrong(converted)
        if wrong is not None:
            raise self.refuse(config, self.expected, index if np.ndim(value) == 0 else wrong)
        return converted

    def refuse(self, config: Config, expected: str, index: int | None = None) -> ModelFileError:
        """The error for a value, or for one element of an array, that other keys or tensors contradict."""
        if self.name not in config:
            return config.mistyped(self.name, expected, None)
        value = config[self.name]
        if isinstance(value, np.ndarray | list | tuple) and index is not None and index < len(value):
            return config.mistyped(self.name, expected, _element(value, index), index)
        return config.mistyped(self.name, expected, value)


def whole(name: str, least: int = 0, most: int = LARGEST_COUNT, *, expected: str = "") -> Key[int]:
    """A whole number. `expected` replaces the range in messages, where numbers have names."""
    rule = expected or f"a whole number from {least} to {most}"
    return Key(name, rule, as_int, lambda value: None if least <= value <= most else 0)


def number(
    name: str,
    least: float = -_LARGEST_NUMBER,
    most: float = _LARGEST_NUMBER,
    *,
    above: float | None = None,
    or_zero: bool = False,
) -> Key[float]:
    """A finite number, `above` a bound or from `least`; with `or_zero` also 0, which mostly means none."""
    low = f"from {least:g}" if above is None else f"above {above:g}, up"
    rule = f"{'0 or ' if or_zero else ''}a number {low} to {most:g}"

    def first_wrong(value: float) -> int | None:
        with np.errstate(over="ignore"):
            nearest = float(np.float32(value))  # what an op would take
        fits = least <= value <= most and isfinite(nearest) and (above is None or nearest > above)
        return None if fits or (or_zero and value == 0) else 0

    return Key(name, rule, as_float, first_wrong)


def flag(name: str) -> Key[bool]:
    return Key(name, "a boolean", as_bool, _none_wrong)


def text(name: str) -> Key[str]:
    return Key(name, "a string", as_string, _none_wrong)


def choice(name: str, *values: str) -> Key[str]:
    """One of several texts."""
    rule = f"{', '.join(values[:-1])} or {values[-1]}"
    return Key(name, rule, as_string, lambda value: None if value in values else 0)


def texts(name: str) -> Key[Sequence[str]]:
    return Key(name, "an array of strings", as_strings, _none_wrong)


def wholes(name: str, least: int = 0, most: int = LARGEST_COUNT) -> Key[npt.NDArray[np.int64]]:
    """An array of whole numbers."""
    rule = f"whole numbers from {least} to {most}"
    return Key(name, rule, as_ints, lambda values: _first((values < least) | (values > most)))


def numbers(name: str) -> Key[npt.NDArray[np.float64]]:
    """An array of finite numbers."""
    rule = "finite numbers"
    return Key(name, rule, as_floats, lambda values: _first(~np.isfinite(values)))


def _none_wrong(_: object) -> None:
    return None


def _first(wrong: npt.NDArray[np.bool_]) -> int | None:
    return int(wrong.argmax()) if wrong.any() else None


def _element(values: Any, index: int) -> Any:
    """An element of an array as a Python number; a boolean counts as 0 or 1."""
    element = values[index]
    element = element.item() if isinstance(element, np.generic) else element
    return int(element) if isinstance(element, bool) else element
