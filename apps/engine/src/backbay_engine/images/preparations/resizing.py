"""Resampling of 8-bit pictures, bit by bit as torchvision does it: the reference processors' default.

Each output is a weighted mean of the inputs within the filter's reach, which grows with the reduction (antialiasing).
Weights are integers of 15 bits; rows are resampled first, and rounded to 8 bits before columns are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..prepared_picture import Size

Planes = NDArray[np.uint8]  # (3, height, width)
Floats = NDArray[np.float64]
Filter = Literal["bilinear", "bicubic", "lanczos"]
Part = tuple[slice, slice]  # rows, columns

WHOLE: Part = slice(None), slice(None)
BLOCK = 16  # outputs of one matrix product: more would multiply by more zeros, fewer would be small products
STRIPE = 2**18  # values that are converted at once: they stay in the processor's cache


def _triangle(x: Floats) -> Floats:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _cubic(x: Floats) -> Floats:
    a = -0.5
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _windowed_sinc(x: Floats) -> Floats:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


FILTERS: dict[Filter, tuple[float, Callable[[Floats], Floats]]] = {
    "bilinear": (1.0, _triangle),
    "bicubic": (2.0, _cubic),
    "lanczos": (3.0, _windowed_sinc),
}


@dataclass(frozen=True)
class ResizeWeights:
    """For each output the first input of its window, and its weights in units of 2**-precision."""

    inputs: int
    first: NDArray[np.int64]
    weights: Floats  # (outputs, window); zero where a window ends early
    precision: int

    @property
    def seen(self) -> slice:
        """The inputs in any window."""
        return slice(int(self.first[0]), min(int(self.first[-1]) + self.weights.shape[1], self.inputs))

    def part(self, wanted: slice) -> ResizeWeights:
        """The taps of some outputs."""
        return replace(self, first=self.first[wanted], weights=self.weights[wanted])

    def near(self, low: int, high: int) -> tuple[slice, ResizeWeights, slice]:
        """The outputs that see any of the inputs [low, high), their taps over the inputs that they see, and these."""
        seeing = np.flatnonzero((self.first < high) & (self.first + self.weights.shape[1] > low))
        outputs = slice(int(seeing[0]), int(seeing[-1]) + 1)
        part = self.part(outputs)
        seen = part.seen
        return outputs, replace(part, first=part.first - seen.start, inputs=seen.stop - seen.start), seen

    def blocks(self) -> Iterator[tuple[slice, slice, Floats]]:
        """Runs of outputs with their inputs, and the matrix (outputs, inputs) between them."""
        for start in range(0, len(self.first), BLOCK):
            outputs = slice(start, min(start + BLOCK, len(self.first)))
            run = self.part(outputs)
            low, window = run.seen.start, run.weights.shape[1]
            matrix = np.zeros((len(run.first), int(run.first[-1]) + window - low))
            np.put_along_axis(matrix, (run.first - low)[:, None] + np.arange(window), run.weights, axis=1)
            yield outputs, run.seen, matrix[:, : run.seen.stop - low]

    def rounded(self, sums: Floats) -> Planes:
        """Weighted sums as 8-bit values: half a unit rounds up, and what lies outside is clamped."""
        return np.clip(np.floor((sums + 2.0 ** (self.precision - 1)) * 2.0**-self.precision), 0, 255).astype(
            np.uint8
        )


@lru_cache(maxsize=16)
def resizing_taps(inputs: int, outputs: int, filter: Filter) -> ResizeWeights:
    """The windows and weights of all outputs of a line."""
    reach, weigh = FILTERS[filter]
    scale = inputs / outputs
    support = reach * max(scale, 1.0)
    centre = scale * (np.arange(outputs) + 0.5)
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    count = np.minimum((centre + support + 0.5).astype(np.int64), inputs) - first
    offsets = np.arange(int(count.max()))
    weights = weigh((offsets + first[:, None] - centre[:, None] + 0.5) * (1.0 / max(scale, 1.0)))
    weights[offsets >= count[:, None]] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    precision = _precision(float(weights.max()))
    scaled = weights * 2.0**precision
    return ResizeWeights(inputs, first, np.trunc(scaled + np.copysign(0.5, scaled)), precision)


def _precision(largest: float) -> int:
    """The most bits after the point with which the largest weight is below 2**15."""
    return next((bits for bits in range(22) if int(0.5 + largest * 2.0 ** (bits + 1)) >= 2**15), 22)


def resize(pixels: Planes, size: Size, filter: Filter, part: Part = WHOLE) -> Planes:
    """The picture in another size, or a part of the result: no more than the part is computed."""
    height, width = pixels.shape[1:]
    rows = resizing_taps(height, size[0], filter).part(part[0])
    if width != size[1]:
        columns = resizing_taps(width, size[1], filter).part(part[1])
        narrow = np.empty((3, height, len(columns.first)), np.uint8)
        narrow[:, rows.seen] = _rows(pixels[:, rows.seen], columns)
    else:
        narrow = pixels[:, :, part[1]]
    return _columns(narrow, rows) if height != size[0] else narrow[:, part[0]]


def resize_on_square(pixels: Planes, side: int, filter: Filter, colour: tuple[int, ...]) -> Planes:
    """The picture in the middle of a square of one colour, resized; of the square only what it mixes with is made."""
    height, width = pixels.shape[1:]
    most = max(height, width)
    top, left = (most - height) // 2, (most - width) // 2
    columns, narrow, across = resizing_taps(most, side, filter).near(left, left + width)
    rows, low, along = resizing_taps(most, side, filter).near(top, top + height)
    near = plain_picture(colour, (low.inputs, narrow.inputs))
    top, left = top - along.start, left - across.start
    near[:, top : top + height, left : left + width] = pixels
    square = plain_picture(colour, (side, side))
    square[:, rows, columns] = _columns(_rows(near, narrow), low)
    return square


def plain_picture(colour: tuple[int, ...], size: Size) -> Planes:
    """A picture of one colour."""
    planes = np.empty((3, *size), np.uint8)
    planes[:] = np.array(colour, np.uint8)[:, None, None]
    return planes


def _rows(pixels: Planes, columns: ResizeWeights) -> Planes:
    planes, height, width = pixels.shape
    lines = pixels.reshape(-1, width)
    out = np.empty((len(lines), len(columns.first)), np.uint8)
    blocks = list(columns.blocks())
    step = max(STRIPE // width, 1)
    for start in range(0, len(lines), step):
        stripe = lines[start : start + step].astype(np.float64)
        for outputs, inputs, matrix in blocks:
            out[start : start + step, outputs] = columns.rounded(stripe[:, inputs] @ matrix.T)
    return out.reshape(planes, height, -1)


def _columns(pixels: Planes, rows: ResizeWeights) -> Planes:
    out = np.empty((len(pixels), len(rows.first), pixels.shape[2]), np.uint8)
    for outputs, inputs, matrix in rows.blocks():
        for plane in range(len(pixels)):
            out[plane, outputs] = rows.rounded(matrix @ pixels[plane, inputs].astype(np.float64))
    return out
