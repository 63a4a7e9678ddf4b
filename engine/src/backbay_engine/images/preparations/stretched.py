"""Pictures of any shape, stretched to whole patches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np

from ...errors import ImageError
from ..decoding import MOST_STRETCH
from ..picture import Fit
from ..prepared import Prepared, Size
from ..resizing import Planes, resize
from .contract import Pixels, Plan, Preparation


@dataclass(frozen=True, kw_only=True)
class Stretched(Preparation):
    """Stretched to whole merged patches, about as many pixels as the picture has within the limits."""

    patch: int
    merge: int = 2
    frames: int = 2
    min_pixels: int
    max_pixels: int
    image_tokens: int | None = None

    @property
    def _unit(self) -> int:
        return self.patch * self.merge

    def plan(self, size: Size) -> Plan:
        height, width = self._size(size)
        plan = self._plan(height // self._unit, width // self._unit)
        if self.image_tokens is not None and plan.tokens > self.image_tokens:
            raise ImageError(
                f"a picture of {size[1]} x {size[0]} pixels takes {plan.tokens} tokens, more than "
                f"image_tokens={self.image_tokens}"
            )
        return plan

    def largest(self) -> Plan:
        most = self.max_pixels // self._unit**2
        if self.image_tokens is None and most < MOST_STRETCH:
            return self._plan(
                1, math.isqrt(most * MOST_STRETCH)
            )  # one row of a long picture exceeds max_pixels
        grids = ((rows, most // rows) for rows in range(math.isqrt(most), 0, -1))
        likely = (grid for grid in grids if grid[1] <= MOST_STRETCH * grid[0])
        return self._plan(*max(likely, key=lambda grid: grid[0] * grid[1]))

    def size_of(self, plan: Plan) -> Size:
        _, rows, columns = plan.grid
        return rows * self.patch, columns * self.patch

    def plan_of(self, picture: Prepared) -> Plan:
        rows, columns = (side // self.merge for side in picture.grid[1:])
        return self._plan(rows, columns)

    def limited(self, image_tokens: int | None) -> Self:
        if image_tokens is None:
            return self
        most = min(self.max_pixels, image_tokens * self._unit**2)
        return replace(
            self, max_pixels=most, min_pixels=min(self.min_pixels, most), image_tokens=image_tokens
        )

    def _plan(self, rows: int, columns: int) -> Plan:
        """The plan of so many merged patches."""
        patches = rows * columns * self.merge**2
        grid = 1, rows * self.merge, columns * self.merge
        return Plan((patches, 3 * self.frames * self.patch**2), rows * columns, grid)

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

    def _pixels(self, planes: Planes, plan: Plan, fit: Fit | None) -> Pixels:
        _, rows, columns = plan.grid
        pixels = self._normalised(resize(planes, (rows * self.patch, columns * self.patch), "bicubic"))
        merged = (
            3,
            rows // self.merge,
            self.merge,
            self.patch,
            columns // self.merge,
            self.merge,
            self.patch,
        )
        patches = pixels.reshape(merged).transpose(1, 4, 2, 5, 0, 3, 6)[..., None, :, :]
        return np.broadcast_to(patches, (*patches.shape[:5], self.frames, *patches.shape[6:]))


@final
@dataclass(frozen=True, kw_only=True)
class SmartResize(Stretched):
    """qwen2.5-vl"""

    family = "qwen2.5-vl"
    patch: int = 14
    min_pixels: int = 56 * 56
    max_pixels: int = 12845056


@final
@dataclass(frozen=True, kw_only=True)
class Qwen3Resize(Stretched):
    """qwen3-vl"""

    family = "qwen3-vl"
    patch: int = 16
    min_pixels: int = 256 * 256
    max_pixels: int = 4096 * 4096
