"""Pictures that are stretched: to one square, or in any shape to whole patches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np

from ...errors import ImageError
from ..image import MOST_STRETCH, Fit
from ..prepared_picture import Prepared, Size
from .preparation import PictureLayout, Pixels, Preparation
from .resizing import Planes, resize, resize_on_square


@dataclass(frozen=True, kw_only=True)
class SquarePreparation(Preparation):
    """One square, whatever the picture's shape."""

    size: int
    tokens: int

    def plan(self, size: Size) -> PictureLayout:
        return PictureLayout((1, 3, self.size, self.size), self.tokens, (1, 1))

    def largest_size(self) -> Size:
        return self.size, self.size


@final
@dataclass(frozen=True, kw_only=True)
class Gemma3Preparation(SquarePreparation):
    """gemma3: the picture stretched."""

    family = "gemma3"

    def _pixels(self, planes: Planes, plan: PictureLayout, fit: Fit | None) -> Pixels:
        return self._normalised(resize(planes, (self.size, self.size), "bilinear"))


@final
@dataclass(frozen=True, kw_only=True)
class CentreCropPreparation(SquarePreparation):
    """llava 1.5: the middle square of the picture, or, with fit="pad", the picture on a square of the mean colour."""

    family = "llava"
    fits = ("pad",)

    def _pixels(self, planes: Planes, plan: PictureLayout, fit: Fit | None) -> Pixels:
        if fit == "pad":
            colour = tuple(int(each * 255) for each in self.mean)
            return self._normalised(resize_on_square(planes, self.size, "bicubic", colour))
        height, width = planes.shape[1:]
        long = int(self.size * max(height, width) / min(height, width))
        size = (self.size, long) if height < width else (long, self.size)
        top, left = ((side - self.size) // 2 for side in size)
        part = slice(top, top + self.size), slice(left, left + self.size)
        return self._normalised(resize(planes, size, "bicubic", part))


@final
@dataclass(frozen=True, kw_only=True)
class PixtralPreparation(Preparation):
    """pixtral: the grid is that of the rows, of so many pixels either way (`unit`)."""

    family = "pixtral"
    unit: int
    edge: int

    def plan(self, size: Size) -> PictureLayout:
        ratio = max(1.0, *(side / self.edge for side in size))
        height, width = size if ratio == 1 else (math.floor(side / ratio) for side in size)
        return self._plan(*(max(1, -(-side // self.unit)) for side in (height, width)))

    def largest_size(self) -> Size:
        return self.edge, self.edge

    def plan_of(self, picture: Prepared) -> PictureLayout:
        rows, columns = picture.grid
        return self._plan(rows, columns)

    def limited(self, image_tokens: int | None) -> Self:
        if image_tokens is None or self.largest().tokens <= image_tokens:
            return self
        return replace(self, edge=math.isqrt(image_tokens) * self.unit)

    def _plan(self, rows: int, columns: int) -> PictureLayout:
        shape = (1, 3, rows * self.unit, columns * self.unit)
        return PictureLayout(shape, rows * columns, (rows, columns))

    def _pixels(self, planes: Planes, plan: PictureLayout, fit: Fit | None) -> Pixels:
        return self._normalised(resize(planes, (plan.shape[-2], plan.shape[-1]), "bicubic"))


@dataclass(frozen=True, kw_only=True)
class QwenPreparation(Preparation):
    """qwen2.5-vl: stretched to whole merged patches, about as many pixels as the picture has within the limits."""

    family = "qwen2.5-vl"
    patch: int = 14
    merge: int = 2
    frames: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 12845056
    image_tokens: int | None = None

    @property
    def _unit(self) -> int:
        return self.patch * self.merge

    def plan(self, size: Size) -> PictureLayout:
        height, width = self._size(size)
        plan = self._plan(height // self._unit, width // self._unit)
        if self.image_tokens is not None and plan.tokens > self.image_tokens:
            raise ImageError(
                f"a picture of {size[1]} x {size[0]} pixels takes {plan.tokens} tokens, more than "
                f"image_tokens={self.image_tokens}"
            )
        return plan

    def largest(self) -> PictureLayout:
        most = self.max_pixels // self._unit**2
        if self.image_tokens is None and most < MOST_STRETCH:
            return self._plan(1, math.isqrt(most * MOST_STRETCH))  # a long picture exceeds max_pixels
        grids = ((rows, most // rows) for rows in range(math.isqrt(most), 0, -1))
        likely = (grid for grid in grids if grid[1] <= MOST_STRETCH * grid[0])
        return self._plan(*max(likely, key=lambda grid: grid[0] * grid[1]))

    def largest_size(self) -> Size:
        _, rows, columns = self.largest().grid
        return rows * self.patch, columns * self.patch

    def plan_of(self, picture: Prepared) -> PictureLayout:
        rows, columns = (side // self.merge for side in picture.grid[1:])
        return self._plan(rows, columns)

    def limited(self, image_tokens: int | None) -> Self:
        if image_tokens is None:
            return self
        most = min(self.max_pixels, image_tokens * self._unit**2)
        return replace(
            self, max_pixels=most, min_pixels=min(self.min_pixels, most), image_tokens=image_tokens
        )

    def _plan(self, rows: int, columns: int) -> PictureLayout:
        """The plan of so many merged patches."""
        patches = rows * columns * self.merge**2
        grid = 1, rows * self.merge, columns * self.merge
        return PictureLayout((patches, 3 * self.frames * self.patch**2), rows * columns, grid)

    def _size(self, size: Size) -> Size:
        height, width = (round(side / self._unit) * self._unit for side in size)
        area = size[0] * size[1]
        if height * width > self.max_pixels:
            beta = math.sqrt(area / self.max_pixels)
            height, width = (max(1, math.floor(side / beta / self._unit)) * self._unit for side in size)
        elif height * width < self.min_pixels:
            beta = math.sqrt(self.min_pixels / area)
            height, width = (math.ceil(side * beta / self._unit) * self._unit for side in size)
        return height, width

    def _pixels(self, planes: Planes, plan: PictureLayout, fit: Fit | None) -> Pixels:
        _, rows, columns = plan.grid
        pixels = self._normalised(resize(planes, (rows * self.patch, columns * self.patch), "bicubic"))
        squares = (each for side in (rows, columns) for each in (side // self.merge, self.merge, self.patch))
        patches = pixels.reshape(3, *squares).transpose(1, 4, 2, 5, 0, 3, 6)[..., None, :, :]
        return np.broadcast_to(patches, (*patches.shape[:5], self.frames, *patches.shape[6:]))


@final
@dataclass(frozen=True, kw_only=True)
class Qwen2Preparation(QwenPreparation):
    """qwen2-vl: as QwenPreparation."""

    family = "qwen2-vl"


@final
@dataclass(frozen=True, kw_only=True)
class Qwen3Preparation(QwenPreparation):
    """qwen3-vl: as QwenPreparation, with other limits."""

    patch: int = 16
    min_pixels: int = 256 * 256
    max_pixels: int = 4096 * 4096
    family = "qwen3-vl"
