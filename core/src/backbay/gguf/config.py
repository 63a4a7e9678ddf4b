"""Typed access to a model's metadata; conversions give None for a value of another type."""

from __future__ import annotations

# The methods int, float and bool hide the builtins in the class, hence `builtins.int`.
import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar, final, overload

import numpy as np
import numpy.typing as npt

from backbay.errors import ModelFileError, nearest
from backbay.types.fork_safety import cached_property

from .content import ValueType
from .metadata import Metadata, Strings

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
D = TypeVar("D")
_REQUIRED: Final = object()
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_GLOBAL = ("general.", "tokenizer.", "split.")  # these keys never have the architecture as prefix


def as_string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def as_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_float(value: object) -> float | None:
    if isinstance(value, float):
        return value
    number = as_int(value)
    return None if number is None else float(number)


def as_bool(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def as_strings(value: object) -> Sequence[str] | None:
    if isinstance(value, Strings):
        return value
    if _is_empty(value):
        return ()
    if isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        return tuple(value)
    return None


def as_ints(value: object) -> npt.NDArray[np.int64] | None:
    array = _as_array(value, "iu")
    if array is None or (array.dtype.kind == "u" and array.max(initial=0) > np.iinfo(np.int64).max):
        return None
    return np.array(array, np.int64)


def as_floats(value: object) -> npt.NDArray[np.float64] | None:
    array = _as_array(value, "fiu")
    if array is None:
        return None
    with np.errstate(invalid="ignore"):  # a signalling NaN in a file must not cause a warning
        return np.array(array, np.float64)


def as_bools(value: object) -> npt.NDArray[np.bool_] | None:
    array = _as_array(value, "b")
    return None if array is None else np.array(array, np.bool_)


def describe_value(value: object) -> str:
    """A value in words, short enough for a message."""
    if isinstance(value, str):
        return f"the string {value[:60]!r}{'...' if len(value) > 60 else ''}"
    if isinstance(value, Strings):
        return f"an array of {len(value)} strings"
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype.name} numbers"
    return f"the {type(value).__name__} {value!r}"[:80]


def _as_array(value: object, kinds: str) -> npt.NDArray[Any] | None:
    if _is_empty(value):
        return np.empty(0)  # an empty array matches every type
    array: npt.NDArray[Any]
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, list | tuple):
        array = np.asarray(value)
    else:
        return None
    return array if array.dtype.kind in kinds and array.ndim == 1 else None


def _is_empty(value: object) -> bool:
    return isinstance(value, list | tuple | Strings | np.ndarray) and len(value) == 0


class ConfigGetter(Protocol[T_co]):
    """`config.int(key)` requires the key, `config.int(key, default)` does not."""

    @overload
    def __call__(self, key: str) -> T_co: ...
    @overload
    def __call__(self, key: str, default: D) -> T_co | D: ...


@final
class ConfigLookup(Generic[T]):
    """A typed lookup as a method of Config; `convert` gives None for a value of another type."""

    def __init__(self, expected: str, convert: Callable[[object], T | None]) -> None:
        self.expected, self.convert = expected, convert

    @overload
    def __get__(self, config: None, owner: type[Config]) -> ConfigLookup[T]: ...
    @overload
    def __get__(self, config: Config, owner: type[Config]) -> ConfigGetter[T]: ...
    def __get__(self, config: Config | None, owner: type[Config]) -> ConfigLookup[T] | ConfigGetter[T]:
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

    string = ConfigLookup("a string", as_string)
    int = ConfigLookup("an integer", as_int)
    float = ConfigLookup("a number", as_float)
    bool = ConfigLookup("a boolean", as_bool)
    strings = ConfigLookup("an array of strings", as_strings)
    ints = ConfigLookup("an array of integers", as_ints)
    floats = ConfigLookup("an array of numbers", as_floats)
    bools = ConfigLookup("an array of booleans", as_bools)

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
        found = "no such key" if full not in self._values else describe_value(value)
        if index is not None:
            where = f"element {index} of {where}"
            array = self._values[full]
            if offset is not None and isinstance(array, np.ndarray):
                offset += index * array.itemsize
        return ModelFileError(self._path, offset, f"{expected} in {where}", found)
