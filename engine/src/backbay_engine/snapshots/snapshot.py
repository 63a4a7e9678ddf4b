"""A conversation at one moment: its tokens, what the cache holds of them, and how its answer goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from ..cache.cells.contents import Contents
from ..errors import DamagedSnapshotError, SnapshotError
from . import tensor_file
from .requests import options_from, options_to

TOKENS, PROMPT = "tokens", "prompt"
CACHE = "cache."


@final
@dataclass(frozen=True, eq=False)
class Snapshot:
    """A conversation, which goes on with `llm.submit(snapshot.prompt, **snapshot.options)` once it is restored.

    model     the fingerprint of the model: only the same weights can go on
    tokens    the tokens that the cache holds
    contents  what it holds of them
    exact     how many of them are as if computed anew: those after them have seen tokens that are forgotten
    prompt    the prompt of the request; of a prompt that was saved, this prompt
    options   the options of the request, with its seed, and in `resume` the tokens of its answer so far
    notes     facts of the caller's, such as the messages of a chat; plain JSON
    """

    model: str
    tokens: tuple[int, ...]
    contents: Contents = field(default_factory=Contents, repr=False)
    exact: int | None = None
    prompt: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of keys, values and states."""
        return sum(array.nbytes for array in self.contents.arrays.values())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file of safetensors, whole or not at all."""
        tensor_file.write(Path(path), self.to_bytes())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file; SnapshotError if it cannot be read, DamagedSnapshotError unless it is as it was written."""
        try:
            data = Path(path).read_bytes()
        except (OSError, ValueError) as error:  # a path with a null character is a ValueError
            told = getattr(error, "strerror", None) or error
            raise SnapshotError(f"{path}: the snapshot cannot be read: {told}") from error
        return cls.from_bytes(data, path)

    def to_bytes(self) -> bytearray:
        """The bytes of the file."""
        arrays = {TOKENS: np.array(self.tokens, "<i4"), PROMPT: np.array(self.prompt, "<i4")}
        arrays |= {CACHE + name: array for name, array in self.contents.arrays.items()}
        facts = {
            "model": self.model,
            "exact": self.exact,
            "numbers": dict(self.contents.numbers),
            "options": options_to(self.options),
            "notes": dict(self.notes),
        }
        return tensor_file.packed(arrays, facts)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, where: object = "a snapshot") -> Self:
        """The snapshot of a file's bytes."""
        arrays, facts = tensor_file.unpacked(data, where)
        try:
            held = {name[len(CACHE) :]: array for name, array in arrays.items() if name.startswith(CACHE)}
            return cls(
                str(facts["model"]),
                _ids(arrays[TOKENS]),
                Contents(held, {str(name): int(number) for name, number in facts["numbers"].items()}),
                None if facts["exact"] is None else max(0, int(facts["exact"])),
                _ids(arrays[PROMPT]),
                options_from(facts["options"]),
                dict(facts["notes"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            told = f"{where}: the snapshot is damaged, or of another version: {error!r}"
            raise DamagedSnapshotError(told) from None


def _ids(array: NDArray[Any]) -> tuple[int, ...]:
    if array.dtype != np.int32 or array.ndim != 1:
        raise TypeError(f"{array.dtype} of {array.shape} are no row of token ids")
    return tuple(array.tolist())
