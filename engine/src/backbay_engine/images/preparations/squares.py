"""Pictures that become one square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ..picture import Fit
from ..prepared import Size
from ..resizing import Planes, resize, resize_on_square
from .contract import Pixels, Plan, Preparation


@dataclass(frozen=True, kw_only=True)
class Square(Preparation):
    """One square, whatever the picture's shape."""

    size: int
    tokens: int

    def plan(self, size: Size) -> Plan:
        return Plan((1, 3, self.size, self.size), self.tokens, (1, 1))

    def largest(self) -> Plan:
        return self.plan((self.size, self.size))


@final
@dataclass(frozen=True, kw_only=True)
class Squash(Square):
    """gemma3: the picture stretched."""

    family = "gemma3"

    def _pixels(self, planes: Planes, plan: Plan, fit: Fit | None) -> Pixels:
        return self._normalised(resize(planes, (self.size, self.size), "bilinear"))


@final
@dataclass(frozen=True, kw_only=True)
class CentreCrop(Square):
    """llava 1.5: the middle square of the picture, or, with fit="pad", the picture on a square of the mean colour."""

    family = "llava"
    fits = ("pad",)

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
