"""Phi-4-multimodal's pictures: enlarged to whole crops, with white behind the end, and the canvas shrunk to one more."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from ...errors import ImageError
from ..image import Fit
from ..prepared_picture import Size
from .preparation import PictureLayout, Pixels, Preparation
from .resizing import Planes, plain_picture, resize

THINNEST = 10  # pixels
SHARPNESS = -0.75  # of PyTorch's cubic interpolation without antialiasing


@final
@dataclass(frozen=True, kw_only=True)
class CropsPreparation(Preparation):
    """The grid is of crops; the first of a picture's pixels are those of the whole canvas."""

    family = "phi4"
    size: int
    patch: int
    crops: int

    @property
    def side(self) -> int:
        """The rows of a crop, and those in each: a row is made of two by two patches."""
        return -(-(self.size // self.patch) // 2)

    def plan(self, size: Size) -> PictureLayout:
        grid, (rows, columns) = self._placed(size)[0], self.useful(size)
        tokens = rows * (columns + 1) + 1 + self.side * (self.side + 1)
        return PictureLayout((1, 1 + grid[0] * grid[1], 3, self.size, self.size), tokens, grid)

    def largest_size(self) -> Size:
        return self.crops * self.size, self.size

    def limited(self, image_tokens: int | None) -> Self:
        if image_tokens is None or self.largest().tokens <= image_tokens:
            return self
        return (
            replace(self, crops=self.crops - 1).limited(image_tokens)
            if self.crops > 1
            else super().limited(image_tokens)
        )

    def patches(self, size: Size) -> Size:
        """The patches of the canvas that are not padding alone: rows and columns."""
        grid, scaled = self._placed(size)
        each = self.size // self.patch
        height, width = (
            each * crops - (crops * self.size - side) // self.patch
            for crops, side in zip(grid, scaled, strict=True)
        )
        return height, width

    def useful(self, size: Size) -> Size:
        """The rows and columns of the canvas that the text gets."""
        each = self.size // self.patch
        height, width = (n // each * self.side + -(-(n % each) // 2) for n in self.patches(size))
        return height, width

    def _placed(self, size: Size) -> tuple[Size, Size]:
        """The grid of crops, and height and width of the picture on their canvas."""
        height, width = size
        rows, columns = (math.ceil(side / self.size) for side in size)
        if rows * columns > self.crops:
            rows, columns = self._closest(size)
        by_height, by_width = rows * self.size / height, columns * self.size / width
        if by_width < by_height:
            scaled = int(height * by_width), columns * self.size
        else:
            scaled = rows * self.size, int(width * by_height)
        if min(scaled) < THINNEST:
            raise ImageError(
                f"a picture of {height} x {width} pixels is too thin: {self.family} would make "
                f"{scaled[0]} x {scaled[1]} of it"
            )
        return (rows, columns), scaled

    def _closest(self, size: Size) -> Size:
        """The grid whose ratio is the closest; of equal ones, the largest that the picture fills by half."""
        height, width = size
        counts = range(1, self.crops + 1)
        grids = [(rows, columns) for rows in counts for columns in counts if rows * columns <= self.crops]
        least, chosen = math.inf, (1, 1)
        for rows, columns in sorted(grids, key=lambda grid: grid[0] * grid[1]):
            difference = abs(width / height - columns / rows)
            full = height * width > 0.5 * self.size**2 * rows * columns
            if difference < least or (difference == least and full):
                least, chosen = difference, (rows, columns)
        return chosen

    def _pixels(self, planes: Planes, plan: PictureLayout, fit: Fit | None) -> Pixels:
        grid, scaled = self._placed((planes.shape[1], planes.shape[2]))
        canvas = plain_picture((255, 255, 255), (grid[0] * self.size, grid[1] * self.size))
        canvas[:, : scaled[0], : scaled[1]] = resize(planes, scaled, "bilinear")
        values = self._normalised(canvas)
        lines = values.reshape(3, grid[0], self.size, grid[1], self.size).transpose(1, 3, 0, 2, 4)
        crops = lines.reshape(-1, 3, self.size, self.size)
        return np.concatenate([_shrunk(values, self.size)[None], crops])


def _shrunk(values: Pixels, side: int) -> Pixels:
    """A canvas interpolated to a square, each value between the four nearest of its line, as PyTorch does it."""
    for axis in (1, 2):
        if values.shape[axis] != side:
            places, weights = _cubic_taps(values.shape[axis], side)
            shape = [1] * 3
            shape[axis] = side
            taps = zip(places, weights, strict=True)
            values = np.sum([np.take(values, at, axis) * each.reshape(shape) for at, each in taps], axis=0)
    return values


def _cubic_taps(inputs: int, outputs: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The four places of each output, and their weights, (4, outputs) of both."""
    at = (np.arange(outputs) + 0.5) * (inputs / outputs) - 0.5
    first = np.floor(at)
    places = np.clip(first + np.arange(-1, 3)[:, None], 0, inputs - 1).astype(np.int64)
    x = np.abs(at - first - np.arange(-1, 3)[:, None])
    a = SHARPNESS
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return places, np.where(x <= 1, near, far).astype(np.float32)
