"""A picture stretched to whole patches, smaller where its longest edge is too long: pixtral."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self, final

from ..picture import Fit
from ..prepared import Prepared, Size
from ..resizing import Planes, resize
from .contract import Pixels, Plan, Preparation


@final
@dataclass(frozen=True, kw_only=True)
class LongestEdge(Preparation):
    """pixtral: the grid is that of the rows, of so many pixels either way (`unit`)."""

    family = "pixtral"
    unit: int
    edge: int

    def plan(self, size: Size) -> Plan:
        ratio = max(1.0, *(side / self.edge for side in size))
        height, width = size if ratio == 1 else (math.floor(side / ratio) for side in size)
        return self._plan(*(max(1, -(-side // self.unit)) for side in (height, width)))

    def largest(self) -> Plan:
        return self.plan((self.edge, self.edge))

    def size_of(self, plan: Plan) -> Size:
        return plan.shape[-2], plan.shape[-1]

    def plan_of(self, picture: Prepared) -> Plan:
        rows, columns = picture.grid
        return self._plan(rows, columns)

    def limited(self, image_tokens: int | None) -> Self:
        if image_tokens is None or self.largest().tokens <= image_tokens:
            return self
        return replace(self, edge=math.isqrt(image_tokens) * self.unit)

    def _plan(self, rows: int, columns: int) -> Plan:
        shape = (1, 3, rows * self.unit, columns * self.unit)
        return Plan(shape, rows * columns, (rows, columns))

    def _pixels(self, planes: Planes, plan: Plan, fit: Fit | None) -> Pixels:
        return self._normalised(resize(planes, self.size_of(plan), "bicubic"))
