"""A picture and its slices, whose patches lie side by side."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from ...text.tokenizers import Tokenizer
from ..contract import Placed, VisionFamily, in_runs, stand_in
from ..inputs import Inputs, Pictures
from ..preparations import Sliced
from ..prepared import Prepared
from .attention import Groups
from .patches import Pixels

MARKS = "<image>", "</image>", "<slice>", "</slice>"
NUMBER = "<image_id>{}</image_id>"


class SlicedFamily(VisionFamily):
    """A family that encodes a picture, and each of its slices."""

    patch: int

    def words(self) -> tuple[str, ...]:
        return MARKS

    def patches(self, picture: Prepared) -> int:
        return int(picture.pixels.shape[-1]) // self.patch

    def key(self, picture: Prepared) -> Hashable:
        return self.grids(picture)

    def grids(self, picture: Prepared) -> tuple[tuple[int, int], ...]:
        """Rows and columns of patches: of the whole picture, and of each slice."""
        assert isinstance(self.preparation, Sliced)
        sizes = self.preparation.sizes(picture.size, picture.grid)
        first, each = ((height // self.patch, width // self.patch) for height, width in sizes)
        return (first, *[each] * (picture.grid[0] * picture.grid[1]))

    def groups(self, inputs: Inputs, merged: int = 1) -> list[Groups]:
        """The patches that see each other; `merged` are one position."""
        first, *others = (rows * columns // merged for rows, columns in self.grids(inputs.first))
        slices = [Groups(others[0], len(others))] if others else []
        return [Groups(first, 1), *slices] * inputs.count


def placed_as_slices(picture: Prepared, tokenizer: Tokenizer, row: str, counts: Sequence[int]) -> Placed:
    """The picture, then its slices on lines of text; `counts` are the rows of each."""
    begin, end, slice_begin, slice_end = MARKS
    rows, columns = picture.grid
    texts = [begin, *(f"{slice_end}{slice_begin}" for _ in range(rows * columns)), slice_end]
    for line in range(1, rows):
        texts[1 + line * columns] = f"{slice_end}\n{slice_begin}"
    texts[1] = texts[1].replace(slice_end, end)
    between = [tokenizer.encode(text, add_special=False) for text in texts]
    placed = in_runs(stand_in(tokenizer, row), counts, between)
    known = tokenizer.token_id(NUMBER.partition("{")[0]) is not None
    return replace(placed, before=NUMBER, numbered=True) if known else placed


def patches_of(pictures: Pictures, patch: int) -> Pixels:
    """(1, patches of all pictures, features)"""
    found = [
        picture.pixels.reshape(3, patch, -1, patch).transpose(2, 0, 1, 3).reshape(1, -1, 3 * patch**2)
        for picture in pictures
    ]
    return np.concatenate(found, axis=1)
