"""A picture at a low resolution, and its slices at a higher one: minicpm-v, after llava-uhd."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self, final

import numpy as np

from ..image import MOST_STRETCH, Fit
from ..prepared_picture import Prepared, Size
from .preparation import PictureLayout, Pixels, Preparation
from .resizing import Planes, resize


@dataclass(frozen=True, kw_only=True)
class SlicedPreparation(Preparation):
    """The picture and each slice have about size * size pixels; the grid is (0, 0) without slices.

    slices    the most slices of a picture
    """

    size: int
    patch: int
    slices: int = 9

    @property
    def _unit(self) -> int:
        """Pixels of which sides are multiples."""
        return self.patch

    @abstractmethod
    def rows(self, part: Size) -> int:
        """The rows of a part of this height and width."""

    def plan(self, size: Size) -> PictureLayout:
        grid = self._grid(size)
        whole, each = self.sizes(size, grid)
        count = grid[0] * grid[1]
        patches = (whole[0] * whole[1] + count * each[0] * each[1]) // self.patch**2
        rows = self.rows(whole) + (count and count * self.rows(each))
        return PictureLayout((1, 3, self.patch, patches * self.patch), rows, grid)

    def largest_size(self) -> Size:
        return _largest(self)

    def plan_of(self, picture: Prepared) -> PictureLayout:
        count = picture.grid[0] * picture.grid[1]
        # A limit matters only where it is close to the number of slices.
        limits = (self, *(replace(self, slices=most) for most in range(max(1, count), count + 3)))
        plans = (each.plan(picture.size) for each in limits)
        return next((plan for plan in plans if plan.grid == picture.grid), self.plan(picture.size))

    def limited(self, image_tokens: int | None) -> Self:
        if image_tokens is None:
            return self
        # A limit of one means none.
        limits = [replace(self, slices=most) for most in range(self.slices, 0, -1)]
        fitting = (fewer for fewer in limits if fewer.largest().tokens <= image_tokens)
        found = next(fitting, None)
        if found is None:
            raise self._too_few(image_tokens, limits[-1].largest().tokens)
        return found

    def sizes(self, size: Size, grid: tuple[int, ...]) -> tuple[Size, Size]:
        """Height and width of the whole picture, and of a slice."""
        if not any(grid):
            return self._fitted(size), (0, 0)
        rows, columns = grid
        part = _nearest(size[0], rows) / rows, _nearest(size[1], columns) / columns
        return self._fitted(size), self._fitted(part)

    def _fitted(self, size: tuple[float, float]) -> Size:
        """About as many pixels as a square has, in whole patches."""
        ratio = size[1] / size[0]
        height = int(self.size / math.sqrt(ratio))
        return _nearest(height, self._unit), _nearest(int(height * ratio), self._unit)

    def _grid(self, size: Size) -> Size:
        """Rows and columns of slices, by their shape; of equally good ones the first, which has fewer columns."""
        wanted = min(math.ceil(size[0] * size[1] / self.size**2), self.slices)
        if wanted <= 1:
            return 0, 0
        ratio = math.log(size[1] / size[0])
        counts = (n for n in (wanted - 1, wanted, wanted + 1) if 1 < n <= self.slices)
        grids = [(n // columns, columns) for n in counts for columns in range(1, n + 1) if n % columns == 0]
        return min(grids, key=lambda grid: abs(ratio - math.log(grid[1] / grid[0])))

    def _pixels(self, planes: Planes, plan: PictureLayout, fit: Fit | None) -> Pixels:
        """Patches side by side: those of the whole picture row by row, then those of each slice."""
        (rows, columns), size = plan.grid, (planes.shape[1], planes.shape[2])
        whole, (height, width) = self.sizes(size, plan.grid)
        parts = [resize(planes, whole, "bicubic")]
        if rows:
            fine = resize(planes, (rows * height, columns * width), "bicubic")
            parts += [
                fine[:, row * height :, column * width :][:, :height, :width]
                for row in range(rows)
                for column in range(columns)
            ]
        return np.concatenate([self._side_by_side(self._normalised(part)) for part in parts], axis=2)

    def _side_by_side(self, pixels: Pixels) -> Pixels:
        _, height, width = pixels.shape
        lines = pixels.reshape(3, height // self.patch, self.patch, width)
        return lines.transpose(0, 2, 1, 3).reshape(3, self.patch, -1)


@final
@dataclass(frozen=True, kw_only=True)
class MiniCPMVPreparation(SlicedPreparation):
    """minicpm-v up to 4.5; all parts have as many rows.

    tokens    rows of the picture, and of each slice
    """

    family = "minicpm-v"
    tokens: int

    def rows(self, part: Size) -> int:
        return self.tokens


@final
@dataclass(frozen=True, kw_only=True)
class MiniCPMV46Preparation(SlicedPreparation):
    """minicpm-v 4.6; squares of `merge` by `merge` patches become a row."""

    family = "minicpm-v-4.6"
    merge: int = 4

    @property
    def _unit(self) -> int:
        return self.patch * self.merge

    def rows(self, part: Size) -> int:
        return part[0] * part[1] // self._unit**2


def _nearest(length: float, unit: int) -> int:
    return max(round(length / unit) * unit, unit)


@lru_cache(maxsize=64)
def _largest(slices: SlicedPreparation) -> Size:
    """A size with the most rows, and of these with about the most patches, which depend on how sides are rounded."""

    def sizes() -> Iterator[Size]:
        most = slices.size**2 * (slices.slices + 1)
        for stretch in range(1, MOST_STRETCH + 1):
            short = math.isqrt(most // stretch) + 1
            yield from ((short, short * stretch), (short * stretch, short))

    return max(sizes(), key=lambda size: (slices.plan(size).tokens, slices.plan(size).shape))
