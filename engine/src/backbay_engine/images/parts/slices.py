"""A picture and its slices, whose patches lie side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...text.tokenizers import Tokenizer
from ..contract import Placed, in_runs, stand_in
from ..inputs import Pictures
from ..preparations import Sliced
from ..prepared import Prepared
from .patches import Pixels

MARKS = "<image>", "</image>", "<slice>", "</slice>"
NUMBER = "<image_id>{}</image_id>"


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


def grids_of(preparation: Sliced, picture: Prepared) -> tuple[tuple[int, int], ...]:
    """Rows and columns of patches: of the whole picture, and of each slice."""
    sizes = preparation.sizes(picture.size, picture.grid)
    first, each = ((height // preparation.patch, width // preparation.patch) for height, width in sizes)
    return (first, *[each] * (picture.grid[0] * picture.grid[1]))


def patches_of(pictures: Pictures, patch: int) -> Pixels:
    """(1, patches of all pictures, features)"""
    found = [
        picture.pixels.reshape(3, patch, -1, patch).transpose(2, 0, 1, 3).reshape(1, -1, 3 * patch**2)
        for picture in pictures
    ]
    return np.concatenate(found, axis=1)
