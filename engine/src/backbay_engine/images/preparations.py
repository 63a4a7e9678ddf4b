"""How each family turns a picture into pixels: sizes, grids and order exactly as its reference processor."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ImageError, RequestError
from .decoding import MOST_STRETCH, RGB, require_size
from .picture import Fit
from .prepared import Prepared, Size
from .resizing import Planes, filled, resize, resize_on_square

Colour = tuple[float, float, float]
Pixels = NDArray[np.float32]


@dataclass(frozen=True)
class Plan:
    """What a picture of some size becomes: the shape of its pixels, the rows that its encoder makes, and its tiles."""

    shape: tuple[int, ...]
    tokens: int
    grid: tuple[int, ...]
    aspect_ratio_id: int = 0


@dataclass(frozen=True, kw_only=True)
class Preparation(ABC):
    """From a decoded picture to pixels."""

    family: ClassVar[str]
    fits: ClassVar[tuple[Fit, ...]] = ()
    mean: Colour
    std: Colour

    @abstractmethod
    def plan(self, size: Size) -> Plan:
        """What a picture of this height and width becomes; ImageError if it cannot be taken."""

    @abstractmethod
    def largest(self) -> Plan:
        """A plan with the most rows."""

    def size_of(self, plan: Plan) -> Size:
        """Height and width of a picture that fills a plan's tiles."""
        (rows, columns), (height, width) = plan.grid[-2:], plan.shape[-2:]
        return rows * height, columns * width

    def plan_of(self, picture: Prepared) -> Plan:
        """The plan that a picture was prepared by, perhaps with another limit of its tokens."""
        return self.plan(picture.size)

    @abstractmethod
    def _pixels(self, planes: Planes, plan: Plan, fit: Fit | None) -> Pixels:
        """The pixels, in the plan's shape."""

    @final
    def prepare(self, rgb: RGB, fit: Fit | None = None) -> Prepared:
        """The pixels of a decoded picture (height, width, 3), as its encoder takes them."""
        if fit is not None and fit not in self.fits:
            raise ImageError(f"{self.family} prepares pictures in one way, without fit={fit!r}")
        size = rgb.shape[0], rgb.shape[1]
        require_size("a picture", size)
        plan = self.plan(size)
        pixels = self._pixels(np.ascontiguousarray(rgb.transpose(2, 0, 1)), plan, fit)
        return Prepared(
            pixels.reshape(plan.shape), plan.tokens, plan.grid, size, self.family, plan.aspect_ratio_id
        )

    def limited(self, image_tokens: int | None) -> Self:
        """The same preparation with at most this many rows for a picture; RequestError if it needs more."""
        if image_tokens is not None and (rows := self.largest().tokens) > image_tokens:
            raise RequestError(
                f"image_tokens={image_tokens} is too few: {self.family} makes {rows} rows of a picture"
            )
        return self

    def _normalised(self, planes: Planes) -> Pixels:
        """Values minus the mean, over the deviation, in the reference's order of operations."""
        mean, std = (np.array(each, np.float32) * np.float32(255) for each in (self.mean, self.std))
        table = (np.arange(256, dtype=np.float32) - mean[:, None]) / std[:, None]
        return np.stack([values[plane] for values, plane in zip(table, planes, strict=True)])


@final
@dataclass(frozen=True, kw_only=True)
class Squash(Preparation):
    """gemma3: one square, whatever the picture's shape."""

    family = "gemma3"
    size: int
    tokens: int

    def plan(self, size: Size) -> Plan:
        return Plan((1, 3, self.size, self.size), self.tokens, (1, 1))

    def largest(self) -> Plan:
        return self.plan((self.size, self.size))

    def _pixels(self, planes: Planes, plan: Plan, fit: Fit | None) -> Pixels:
        return self._normalised(resize(planes, (self.size, self.size), "bilinear"))


@final
@dataclass(frozen=True, kw_only=True)
class CentreCrop(Preparation):
    """llava 1.5: the middle square of the picture, or, with fit="pad", the picture on a square of the mean colour."""

    family = "llava"
    fits = ("pad",)
    size: int
    patch: int

    def plan(self, size: Size) -> Plan:
        return Plan((1, 3, self.size, self.size), (self.size // self.patch) ** 2, (1, 1))

    def largest(self) -> Plan:
        return self.plan((self.size, self.size))

    def _pixels(self, planes: Planes, plan: Plan, fit: Fit | None) -> Pixels:
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
class Anyres(Preparation):
    """llava 1.6: the whole picture squashed, then its tiles on the best of some canvases."""

    family = "llava-next"
    size: int
    patch: int
    pinpoints: tuple[Size, ...]  # heights and widths of the canvases

    def plan(self, size: Size) -> Plan:
        rows, columns = (side // self.size for side in self._canvas(size))
        height, width, _, _ = self.unpadded(size)
        tokens = (self.size // self.patch) ** 2 + height * (width + 1)
        return Plan((1, 1 + rows * columns, 3, self.size, self.size), tokens, (rows, columns))

    def largest(self) -> Plan:
        return max((self.plan(size) for size in self.pinpoints), key=lambda plan: plan.tokens)

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

    def _pixels(self, planes: Planes, plan: Plan, fit: Fit | None) -> Pixels:
        height, width = planes.shape[1:]
        canvas = self._canvas((height, width))
        by_height, by_width = canvas[0] / height, canvas[1] / width
        if by_width < by_height:
            size = min(math.ceil(height * by_width), canvas[0]), canvas[1]
        else:
            size = canvas[0], min(math.ceil(width * by_height), canvas[1])
        top, left = (canvas[0] - size[0]) // 2, (canvas[1] - size[1]) // 2
        whole = filled((0, 0, 0), canvas)
        whole[:, top : top + size[0], left : left + size[1]] = resize(planes, size, "bicubic")
        overview = resize(planes, (self.size, self.size), "bicubic")
        return np.stack([self._normalised(tile) for tile in (overview, *_tiles(whole, self.size))])


@final
@dataclass(frozen=True, kw_only=True)
class Canvas(Preparation):
    """mllama: a canvas of at most `tiles` tiles, the picture at its top left."""

    family = "mllama"
    size: int
    patch: int
    tiles: int = 4

    def plan(self, size: Size) -> Plan:
        grid = self._grid(size)
        shape = 1, 1, self.tiles, 3, self.size, self.size
        rows = (self.size // self.patch) ** 2 + 1
        return Plan(shape, self.tiles * rows, grid, self.grids().index(grid) + 1)

    def largest(self) -> Plan:
        return self.plan((self.size, self.tiles * self.size))

    def grids(self) -> list[Size]:
        """The canvases, (rows, columns) of tiles, in the order of their aspect ratio ids from 1."""
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

    def _pixels(self, planes: Planes, plan: Plan, fit: Fit | None) -> Pixels:
        canvas = plan.grid[0] * self.size, plan.grid[1] * self.size
        height, width = planes.shape[1:]
        most_height, most_width = (
            min(max(side, self.size), most) for side, most in zip((height, width), canvas, strict=True)
        )
        by_height, by_width = most_height / height, most_width / width
        if by_width < by_height:
            size = min(math.floor(height * by_width) or 1, most_height), most_width
        else:
            size = most_height, min(math.floor(width * by_height) or 1, most_width)
        whole = filled((0, 0, 0), canvas)
        whole[:, : size[0], : size[1]] = resize(planes, size, "bilinear")
        pixels = np.zeros((self.tiles, 3, self.size, self.size), np.float32)
        for slot, tile in zip(pixels, _tiles(whole, self.size), strict=False):
            slot[:] = self._normalised(tile)
        return pixels


@final
@dataclass(frozen=True, kw_only=True)
class SmartResize(Preparation):
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


def _tiles(planes: Planes, side: int) -> Iterator[Planes]:
    """The tiles of a canvas, row by row."""
    for top in range(0, planes.shape[1], side):
        for left in range(0, planes.shape[2], side):
            yield planes[:, top : top + side, left : left + side]
