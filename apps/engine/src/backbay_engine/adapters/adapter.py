"""An adapter: for some matrices of a model two narrow ones, whose product is added to the matrix."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay import DType, ModelFileError
from backbay.gguf import nearest
from backbay.internals import cached_property
from backbay.plugin import decode

Array: TypeAlias = NDArray[Any]
Matrices: TypeAlias = Mapping[str, tuple[int, ...]]
"""The shapes of a model's matrices that adapters can change, by name: (in, out), or (in, out, experts)."""
LARGEST_RANK: Final = 1 << 14
LARGEST_ALPHA: Final = 1e6


def factor_numbers(raw: Array, dtype: DType) -> Array:
    """Stored numbers in memory of their own: f16 as they are, all else as f32."""
    return np.array(decode(raw, dtype), np.float16 if dtype is DType.F16 else np.float32)


@final
@dataclass(frozen=True, eq=False)
class AdapterFactors:
    """Two narrow matrices: up @ down is added to a matrix, f16 or f32. `up` is scaled as the adapter asks for.

    down  (rank, in), or (experts, rank, in)
    up    (out, rank), or (experts, out, rank)
    """

    down: Array
    up: Array

    @classmethod
    def scaled(cls, down: Array, up: Array, scale: float) -> AdapterFactors:
        """The factors with a scale in `up`; in f32 if f16 could not hold it, or if only one is in f16."""
        if down.dtype != up.dtype:
            down, up = down.astype(np.float32), up.astype(np.float32)
        with np.errstate(over="ignore"):
            rounded = np.asarray(up * up.dtype.type(scale))
        if not np.isfinite(rounded).all() and up.dtype == np.float16:
            return cls(down.astype(np.float32), up.astype(np.float32) * np.float32(scale))
        return cls(down, rounded)

    @property
    def rank(self) -> int:
        return int(self.down.shape[-2])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix that they change, in GGUF's order: (in, out), or (in, out, experts)."""
        return (self.down.shape[-1], self.up.shape[-2], *self.down.shape[:-2])

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + self.up.nbytes


@final
@dataclass(frozen=True, eq=False)
class Adapter:
    """The factors of an adapter's file or folder, by the names of the matrices."""

    path: Path
    factors: Mapping[str, AdapterFactors]

    def __post_init__(self) -> None:
        for name, each in self.factors.items():
            alike = (*each.down.shape[:-2], each.rank) == (*each.up.shape[:-2], each.up.shape[-1])
            if not (alike and 0 < each.rank <= LARGEST_RANK):
                found = f"{list(each.down.shape)} and {list(each.up.shape)}"
                expected = f"two factors of one rank, at most {LARGEST_RANK}, for {name!r}"
                raise ModelFileError(self.path, None, expected, found)
            if not (np.isfinite(each.down).all() and np.isfinite(each.up).all()):
                raise ModelFileError(self.path, None, f"finite numbers for {name!r}", "others")

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all numbers: adapters of one fingerprint change a model alike."""
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(self.factors):
            for part in (self.factors[name].down, self.factors[name].up):
                digest.update(repr((name, part.dtype.str, part.shape)).encode())
                digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def check(self, matrices: Matrices) -> None:
        """ModelFileError with the first name or shape that does not fit a model's matrices."""
        for name, each in self.factors.items():
            shape = matrices.get(name)
            if shape is None:
                expected = "an adapter of this model, which changes matrices that the model multiplies with"
                raise ModelFileError(self.path, None, expected, f"{name!r}{nearest(name, matrices)}")
            if each.shape != shape:
                expected = f"an adapter of this model, whose {name!r} is {list(shape)}"
                raise ModelFileError(self.path, None, expected, f"factors for {list(each.shape)}")
