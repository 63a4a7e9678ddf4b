"""A picture as its encoder takes it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..errors import ImageError

Size = tuple[int, int]  # height, width


@dataclass(frozen=True, eq=False)
class Prepared:
    """The pixels of one picture, and what they become in a prompt. It may stand for the picture in any prompt."""

    pixels: NDArray[np.float32]
    """Normalised values, in the very shape that transformers' processor returns for one image."""
    tokens: int
    """Rows that the encoder makes of the picture; mllama's go to cross attention, all others into the text."""
    grid: tuple[int, ...]
    """(rows, columns) of tiles; for qwen2.5-vl (frames, rows, columns) of patches, the reference's grid_thw."""
    size: Size
    """Height and width of the picture before its preparation."""
    family: str
    """The name of the preparation, such as "gemma3"; a model takes only pictures of its own."""
    aspect_ratio_id: int = 0
    """mllama's number of the grid, from 1; 0 in other families."""
    content: bytes = field(init=False, repr=False)
    """A digest of the pixels and of all that describes them: equal pictures have equal rows."""

    def __post_init__(self) -> None:
        pixels = np.ascontiguousarray(self.pixels, np.float32).view()
        pixels.flags.writeable = False
        object.__setattr__(self, "pixels", pixels)
        described = repr((self.family, self.tokens, self.grid, self.size, self.aspect_ratio_id, pixels.shape))
        digest = hashlib.blake2b(described.encode(), digest_size=32)
        digest.update(pixels.data)
        object.__setattr__(self, "content", digest.digest())

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pixels.shape

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes

    def replace(self, *, pixels: NDArray[np.float32]) -> Self:
        """The same picture with other values in its pixels."""
        values = np.asarray(pixels)
        if values.shape != self.pixels.shape:
            raise ImageError(f"pixels must have the shape {self.pixels.shape}, got {values.shape}")
        if not np.issubdtype(values.dtype, np.floating) or not np.isfinite(values).all():
            raise ImageError(f"pixels must be finite floats, got {values.dtype} values that are not")
        return replace(self, pixels=values.astype(np.float32))
