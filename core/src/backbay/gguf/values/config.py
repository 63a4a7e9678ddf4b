"""Typed access to a model's metadata."""

# The methods int, float and bool hide the builtins in the class, hence `builtins.int`.
from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar, final, overload

import numpy as np

from backbay.errors import ModelFileError, nearest
from backbay.types.cached import cached_property

from ..header.layout import ValueType
from ..header.metadata import Metadata
from . import convert

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
D = TypeVar("D")

_REQUIRED: Final = object()
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_GLOBAL = ("general.", "tokenizer.", "split.")  # these keys never have the architecture as prefix


class Getter(Protocol[T_co]):
    """`config.int(key)` requires the key, `config.int(key, default)` does not."""

    @overload
    def __call__(self, key: str) -> T_co: ...
    @overload
    def __call__(self, key: str, default: D) -> T_co | D: ...


@final
class Typed(Generic[T]):
    """A typed lookup as a method of Config; `convert` gives None for a value of another type."""

    def __init__(self, expected: str, convert: Callable[[object], T | None]) -> None:
        self.expected, self.convert = expected, convert

    @overload
    def __get__(self, config: None, owner: type[Config]) -> Typed[T]: ...
    @overload
    def __get__(self, config: Config, owner: type[Config]) -> Getter[T]: ...
    def __get__(self, config: Config | None, owner: type[Config]) -> Typed[T] | Getter[T]:
        return self if config is None else partial(self._look_up, config)

    def _look_up(self, config: Config, key: str, default: Any = _REQUIRED) -> Any:
        full = config.resolve(key)
        if full is None:
            if default is _REQUIRED:
                raise config.missing(key)
            return default
        value = config[full]
        converted = self.convert(value)
        if converted is None:
            raise config.mistyped(full, self.expected, value)
        return converted


@final
class Config:
    """The metadata of a model file, in file order; `Config({})` belongs to no file.

    A key is looked up as given, then with the architecture as prefix: `config.int("block_count")` finds
    `llama.block_count`. A missing key (without a default) and a value of another type raise ModelFileError.
    `config[key]` returns the value as stored: a numeric array as a read-only view of the header, which may be
    unaligned, a string array as `Strings`. `ints`, `floats` and `bools` return copies.
    """

    def __init__(
        self,
        values: Mapping[str, Any] = _NOTHING,
        *,
        path: str | PathLike[str] = "(no model file)",
        offsets: Mapping[str, builtins.int] = _NOTHING,
    ) -> None:
        self._values, self._path, self._offsets = values, fspath(path), offsets

    string = Typed("a string", convert.as_string)
    int = Typed("an integer", convert.as_int)
    float = Typed("a number", convert.as_float)
    bool = Typed("a boolean", convert.as_bool)
    strings = Typed("an array of strings", convert.as_strings)
    ints = Typed("an array of integers", convert.as_ints)
    floats = Typed("an array of numbers", convert.as_floats)
    bools = Typed("an array of booleans", convert.as_bools)

    @cached_property
    def architecture(self) -> str:
        return self.string("general.architecture", "")

    def __getitem__(self, key: str) -> Any:
        full = self.resolve(key)
        if full is None:
            raise self.missing(key)
        return self._values[full]

    def get(self, key: str, default: Any = None) -> Any:
        full = self.resolve(key)
        return default if full is None else self._values[full]

    def __contains__(self, key: object) -> builtins.bool:
        return isinstance(key, str) and self.resolve(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> builtins.int:
        return len(self._values)

    def keys(self) -> Iterator[str]:
        return iter(self._values)

    def offset(self, key: str) -> builtins.int | None:
        """The value's offset in the file, for messages."""
        full = self.resolve(key)
        return None if full is None else self._offsets.get(full)

    def value_type(self, key: str) -> ValueType | None:
        """The type of a value in the file, or of an array's elements; None if no GGUF file holds the value."""
        return self._values.value_type(key) if isinstance(self._values, Metadata) else None

    def resolve(self, key: str) -> str | None:
        """The key as it stands in the file, or None."""
        if key in self._values:
            return key
        if key.startswith(_GLOBAL):
            return None
        full = f"{self.architecture}.{key}"
        return full if full in self._values else None

    def missing(self, key: str) -> ModelFileError:
        full = key if key.startswith(_GLOBAL) else f"{self.architecture}.{key}"
        found = f"{len(self)} others{nearest(full, self._values)}"
        return ModelFileError(self._path, None, f"a key {key!r} in the metadata", found)

    def mistyped(
        self, key: str, expected: str, value: object, index: builtins.int | None = None
    ) -> ModelFileError:
        """The error for a value, or for the element of an array at `index`."""
        full = self.resolve(key) or key
        offset, where = self.offset(key), repr(full)
        found = "no such key" if full not in self._values else convert.describe(value)
        if index is not None:
            where = f"element {index} of {where}"
            array = self._values[full]
            offset = (
                offset + index * array.itemsize
                if offset is not None and isinstance(array, np.ndarray)
                else offset
            )
        return ModelFileError(self._path, offset, f"{expected} in {where}", found)
