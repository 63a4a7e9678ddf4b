"""A picture cut into tiles, and all of it as the last tile: idefics3."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np

from ..picture import Fit
from ..prepared import Prepared, Size
from ..resizing import Planes, resize
from .canvases import tiles_of
from .contract import Pixels, Plan, Preparation


@final
@dataclass(frozen=True, kw_only=True)
class Split(Preparation):
    """idefics3: the longest edge gets one length, then tiles are cut; the grid is (0, 0) where one tile holds all.

    edge    the length of the longest edge, rounded up to tiles
    """

    family = "idefics3"
    size: int
    tokens: int  # of a tile
    edge: int

    def plan(self, size: Size) -> Plan:
        rows, columns = (side // self.size for side in self._canvas(self._scaled(size)))
        return self._plan((0, 0) if rows == columns == 1 else (rows, columns))

    def largest(self) -> Plan:
        return self.plan((self.edge, self.edge))

    def size_of(self, plan: Plan) -> Size:
        return max(1, plan.grid[0]) * self.size, max(1, plan.grid[1]) * self.size

    def plan_of(self, picture: Prepared) -> Plan:
        longest = max(1, *picture.grid)
        if longest == self._longest:
            return self.plan(picture.size)
        return replace(self, edge=longest * self.size).plan(picture.size)

    def limited(self, image_tokens: int | None) -> Self:
        if image_tokens is None or self.largest().tokens <= image_tokens:
            return self
        if image_tokens < self.tokens:
            raise self._too_few(image_tokens, self.tokens)
        side = math.isqrt(image_tokens // self.tokens - 1) or 1  # of the largest square of tiles
        return replace(self, edge=side * self.size)

    @property
    def _longest(self) -> int:
        """The tiles along the longest edge."""
        return -(-self.edge // self.size)

    def _plan(self, grid: Size) -> Plan:
        tiles = grid[0] * grid[1] + 1
        return Plan((1, tiles, 3, self.size, self.size), tiles * self.tokens, grid)

    def _scaled(self, size: Size) -> Size:
        """Height and width when the longest edge has its length; the other edge is even."""
        ratio = size[1] / size[0]
        if ratio >= 1:
            return max(1, _even(int(self.edge / ratio))), self.edge
        return self.edge, max(1, _even(int(self.edge * ratio)))

    def _canvas(self, size: Size) -> Size:
        """Height and width of whole tiles: of the longest edge, then of the other edge in proportion."""
        ratio = size[1] / size[0]
        if ratio >= 1:
            width = self._whole(size[1])
            return self._whole(int(width / ratio)), width
        height = self._whole(size[0])
        return height, self._whole(int(height * ratio))

    def _whole(self, side: int) -> int:
        return max(1, math.ceil(side / self.size)) * self.size

    def _pixels(self, planes: Planes, plan: Plan, fit: Fit | None) -> Pixels:
        scaled = self._scaled((planes.shape[1], planes.shape[2]))
        canvas = resize(resize(planes, scaled, "lanczos"), self._canvas(scaled), "lanczos")
        whole = resize(canvas, (self.size, self.size), "lanczos")
        tiles = tiles_of(canvas, self.size) if plan.grid != (0, 0) else ()
        return np.stack([self._normalised(tile) for tile in (*tiles, whole)])


def _even(side: int) -> int:
    return side + side % 2
