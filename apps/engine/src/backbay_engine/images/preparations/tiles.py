"""Pictures that are cut into square tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from ..image import Fit
from ..prepared_picture import Prepared, Size
from .preparation import PictureLayout, Pixels, Preparation
from .resizing import Planes, plain_picture, resize


@final
@dataclass(frozen=True, kw_only=True)
class AnyresPreparation(Preparation):
    """llava 1.6: the whole picture squashed, then its tiles on the best of some canvases."""

    family = "llava-next"
    size: int
    patch: int
    pinpoints: tuple[Size, ...]  # heights and widths of the canvases

    def plan(self, size: Size) -> PictureLayout:
        rows, columns = (side // self.size for side in self._canvas(size))
        height, width, _, _ = self.unpadded(size)
        tokens = (self.size // self.patch) ** 2 + height * (width + 1)
        return PictureLayout((1, 1 + rows * columns, 3, self.size, self.size), tokens, (rows, columns))

    def largest_size(self) -> Size:
        return max(self.pinpoints, key=lambda size: self.plan(size).tokens)

    def limited(self, image_tokens: int | None) -> Self:
        few = [
            each for each in self.pinpoints if image_tokens is None or self.plan(each).tokens <= image_tokens
        ]
        return replace(self, pinpoints=tuple(few)) if few else super().limited(image_tokens)

    def unpadded(self, size: Size) -> tuple[int, int, int, int]:
        """The features of the tiles that are not padding: rows, columns, and the first of either."""
        per_tile = self.size // self.patch
        rows, columns = (side // self.size * per_tile for side in self._canvas(size))
        height, width = size
        if width / height > columns / rows:
            top = (rows - int(round(height * (columns / width), 7))) // 2
            return rows - 2 * top, columns, top, 0
        left = (columns - int(round(width * (rows / height), 7))) // 2
        return rows, columns - 2 * left, 0, left

    def _canvas(self, size: Size) -> Size:
        """The canvas that keeps the most of the picture's pixels; of equals, the one with the least waste."""

        def merit(canvas: Size) -> tuple[int, int]:
            scale = min(canvas[1] / size[1], canvas[0] / size[0])
            kept = min(int(size[1] * scale) * int(size[0] * scale), size[0] * size[1])
            return kept, kept - canvas[0] * canvas[1]

        return max(self.pinpoints, key=merit)

    def _pixels(self, planes: Planes, plan: PictureLayout, fit: Fit | None) -> Pixels:
        height, width = planes.shape[1:]
        canvas = self._canvas((height, width))
        by_height, by_width = canvas[0] / height, canvas[1] / width
        if by_width < by_height:
            size = min(math.ceil(height * by_width), canvas[0]), canvas[1]
        else:
            size = canvas[0], min(math.ceil(width * by_height), canvas[1])
        top, left = (canvas[0] - size[0]) // 2, (canvas[1] - size[1]) // 2
        whole = plain_picture((0, 0, 0), canvas)
        whole[:, top : top + size[0], left : left + size[1]] = resize(planes, size, "bicubic")
        overview = resize(planes, (self.size, self.size), "bicubic")
        return np.stack([self._normalised(tile) for tile in (overview, *tiles_of(whole, self.size))])


@dataclass(frozen=True, kw_only=True)
class CanvasPreparation(Preparation):
    """A picture at the top left of a canvas of at most `tiles` tiles."""

    size: int
    patch: int
    tiles: int

    def largest_size(self) -> Size:
        return self.size, self.tiles * self.size

    def grids(self) -> list[Size]:
        """The canvases, (rows, columns) of tiles."""
        counts = range(1, self.tiles + 1)
        return [(rows, columns) for rows in counts for columns in counts if rows * columns <= self.tiles]

    def _grid(self, size: Size) -> Size:
        """The canvas with the least enlargement, or else the least reduction; of equals the one with fewest tiles."""

        def scale(grid: Size) -> float:
            return min(grid[0] * self.size / size[0], grid[1] * self.size / size[1])

        grids = self.grids()
        enlarged = [scale(grid) for grid in grids if scale(grid) >= 1]
        chosen = min(enlarged) if enlarged else max(map(scale, grids))
        return min((grid for grid in grids if scale(grid) == chosen), key=lambda grid: grid[0] * grid[1])

    def _most(self, side: int, canvas: int) -> tuple[int, float | np.float32]:
        """The most pixels that a side of the picture may have, and its enlargement to them."""
        most = min(max(side, self.size), canvas)
        return most, most / side

    def _tiles(self, planes: Planes, grid: tuple[int, ...]) -> Iterator[Pixels]:
        """The tiles of the canvas, row by row."""
        canvas = grid[0] * self.size, grid[1] * self.size
        height, width = planes.shape[1:]
        most_height, by_height = self._most(height, canvas[0])
        most_width, by_width = self._most(width, canvas[1])
        if by_width < by_height:
            size = min(math.floor(height * by_width) or 1, most_height), most_width
        else:
            size = most_height, min(math.floor(width * by_height) or 1, most_width)
        whole = plain_picture((0, 0, 0), canvas)
        whole[:, : size[0], : size[1]] = resize(planes, size, "bilinear")
        return map(self._normalised, tiles_of(whole, self.size))


@final
@dataclass(frozen=True, kw_only=True)
class MllamaPreparation(CanvasPreparation):
    """mllama: the canvas, and empty tiles up to the most that there can be."""

    family = "mllama"
    tiles: int = 4

    def plan(self, size: Size) -> PictureLayout:
        grid = self._grid(size)
        shape = 1, 1, self.tiles, 3, self.size, self.size
        rows = (self.size // self.patch) ** 2 + 1
        return PictureLayout(shape, self.tiles * rows, grid, self.grids().index(grid) + 1)  # ids count from 1

    def _pixels(self, planes: Planes, plan: PictureLayout, fit: Fit | None) -> Pixels:
        pixels = np.zeros((self.tiles, 3, self.size, self.size), np.float32)
        for slot, tile in zip(pixels, self._tiles(planes, plan.grid), strict=False):
            slot[:] = tile
        return pixels


@final
@dataclass(frozen=True, kw_only=True)
class Llama4Preparation(CanvasPreparation):
    """llama4: the tiles of the canvas, and if there are several, also the whole picture squashed to one."""

    family = "llama4"
    tiles: int = 16
    shuffle: int = 2  # patches of a side that become one row

    def plan(self, size: Size) -> PictureLayout:
        grid = self._grid(size)
        count = grid[0] * grid[1]
        count += count > 1
        return PictureLayout((count, 3, self.size, self.size), count * self._rows, grid)

    def limited(self, image_tokens: int | None) -> Self:
        if image_tokens is None:
            return self
        most = max(1, min(self.tiles, image_tokens // self._rows - 1))
        return super(Llama4Preparation, replace(self, tiles=most)).limited(image_tokens)

    @property
    def _rows(self) -> int:
        return (self.size // self.patch // self.shuffle) ** 2

    def _pixels(self, planes: Planes, plan: PictureLayout, fit: Fit | None) -> Pixels:
        tiles = [*self._tiles(planes, plan.grid)]
        if len(tiles) > 1:
            tiles.append(self._normalised(resize(planes, (self.size, self.size), "bilinear")))
        return np.stack(tiles)

    def _most(self, side: int, canvas: int) -> tuple[int, float | np.float32]:
        """In float32 where the canvas is the limit, as the reference."""
        most, exact = super()._most(side, canvas)
        return most, np.float32(most) / np.float32(side) if canvas < max(side, self.size) else exact

    def _normalised(self, planes: Planes) -> Pixels:
        """In bfloat16, as the reference; each operation rounds."""
        table = _bfloat16(np.arange(256, dtype=np.float32) * np.float32(1 / 255))
        found = [
            _bfloat16(_bfloat16(table - _bfloat16(np.float32(mean))) / _bfloat16(np.float32(std)))[plane]
            for plane, mean, std in zip(planes, self.mean, self.std, strict=True)
        ]
        return np.stack(found)


@final
@dataclass(frozen=True, kw_only=True)
class Idefics3Preparation(Preparation):
    """idefics3: the longest edge gets one length, then tiles are cut; the grid is (0, 0) where one tile holds all.

    edge    the length of the longest edge, rounded up to tiles
    """

    family = "idefics3"
    size: int
    tokens: int  # of a tile
    edge: int

    def plan(self, size: Size) -> PictureLayout:
        rows, columns = (side // self.size for side in self._canvas(self._scaled(size)))
        grid = (0, 0) if rows == columns == 1 else (rows, columns)
        tiles = grid[0] * grid[1] + 1
        return PictureLayout((1, tiles, 3, self.size, self.size), tiles * self.tokens, grid)

    def largest_size(self) -> Size:
        return self.edge, self.edge

    def plan_of(self, picture: Prepared) -> PictureLayout:
        longest = max(1, *picture.grid)  # tiles along the longest edge
        same = longest == -(-self.edge // self.size)
        return (self if same else replace(self, edge=longest * self.size)).plan(picture.size)

    def limited(self, image_tokens: int | None) -> Self:
        if image_tokens is None or self.largest().tokens <= image_tokens:
            return self
        if image_tokens < self.tokens:
            raise self._too_few(image_tokens, self.tokens)
        side = math.isqrt(image_tokens // self.tokens - 1) or 1  # of the largest square of tiles
        return replace(self, edge=side * self.size)

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

    def _pixels(self, planes: Planes, plan: PictureLayout, fit: Fit | None) -> Pixels:
        scaled = self._scaled((planes.shape[1], planes.shape[2]))
        canvas = resize(resize(planes, scaled, "lanczos"), self._canvas(scaled), "lanczos")
        whole = resize(canvas, (self.size, self.size), "lanczos")
        tiles = tiles_of(canvas, self.size) if plan.grid != (0, 0) else ()
        return np.stack([self._normalised(tile) for tile in (*tiles, whole)])


def _bfloat16(values: NDArray[np.float32] | np.float32) -> NDArray[np.float32]:
    """Rounded to the nearest bfloat16, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def tiles_of(planes: Planes, side: int) -> Iterator[Planes]:
    """The tiles of a canvas, row by row."""
    for top in range(0, planes.shape[1], side):
        for left in range(0, planes.shape[2], side):
            yield planes[:, top : top + side, left : left + side]


def _even(side: int) -> int:
    return side + side % 2
