"""The contract of preparations: what a picture of some size becomes, and its pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from ...errors import ImageError, RequestError
from ..image import RGB, Fit, require_size
from ..prepared_picture import Prepared, Size
from .resizing import Planes

Colour = tuple[float, float, float]
Pixels = NDArray[np.float32]


@dataclass(frozen=True)
class PictureLayout:
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
    def plan(self, size: Size) -> PictureLayout:
        """What a picture of this height and width becomes; ImageError if it cannot be taken."""

    @abstractmethod
    def largest_size(self) -> Size:
        """Height and width of a picture with the most rows."""

    def largest(self) -> PictureLayout:
        """A plan with the most rows."""
        return self.plan(self.largest_size())

    def plan_of(self, picture: Prepared) -> PictureLayout:
        """The plan that a picture was prepared by, perhaps with another limit of its tokens."""
        return self.plan(picture.size)

    @abstractmethod
    def _pixels(self, planes: Planes, plan: PictureLayout, fit: Fit | None) -> Pixels:
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
            raise self._too_few(image_tokens, rows)
        return self

    def _too_few(self, image_tokens: int, rows: int) -> RequestError:
        return RequestError(
            f"image_tokens={image_tokens} is too few: {self.family} makes {rows} rows of a picture"
        )

    def _normalised(self, planes: Planes) -> Pixels:
        """Values minus the mean, over the deviation, in the reference's order of operations."""
        mean, std = (np.array(each, np.float32) * np.float32(255) for each in (self.mean, self.std))
        table = (np.arange(256, dtype=np.float32) - mean[:, None]) / std[:, None]
        return np.stack([values[plane] for values, plane in zip(table, planes, strict=True)])
