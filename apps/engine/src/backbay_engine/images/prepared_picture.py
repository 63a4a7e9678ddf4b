"""A picture as its encoder takes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..encoders.values import digest_of, other_values, read_only
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
        pixels = read_only(self.pixels)
        object.__setattr__(self, "pixels", pixels)
        content = digest_of(pixels, self.family, self.tokens, self.grid, self.size, self.aspect_ratio_id)
        object.__setattr__(self, "content", content)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pixels.shape

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes

    def replace(self, *, pixels: NDArray[np.float32]) -> Self:
        """The same picture with other values in its pixels."""
        return replace(self, pixels=other_values(pixels, self.pixels, "pixels", ImageError))
