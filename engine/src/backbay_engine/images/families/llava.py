"""LLaVA 1.5 and 1.6: CLIP over one square, or over a picture and its tiles, and a projector of two layers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.gguf import wholes

from ...models.nn import Linear, Weights
from ...text.tokenizers import Tokenizer
from ..contract import Network, Placed, VisionFamily, in_place, stand_in
from ..inputs import Inputs, Pictures
from ..parts import Clip, floats
from ..parts.block import gelu_erf
from ..parts.shape import CLIP, colours, grid_of
from ..preparations import Anyres, CentreCrop
from ..prepared import Prepared

PINPOINTS = wholes("vision.image_grid_pinpoints", 1, 1 << 14)
NEWLINES = "model.image_newline", "v.image_newline"


@final
class Llava(VisionFamily):
    """A projector file; it is of version 1.6 if it has pinpoints, the sizes of canvases for tiles."""

    placeholder = marker = "<image>"

    def prepares(self) -> CentreCrop | Anyres:
        self.side, self.patch = grid_of(self.config)
        self.grid = self.side // self.patch
        mean, deviation = colours(self.config, CLIP)
        points = PINPOINTS.of(self.config, None)
        if points is None:
            return CentreCrop(size=self.side, tokens=self.grid**2, mean=mean, std=deviation)
        if len(points) % 2 or not len(points) or (points % self.side).any():
            raise PINPOINTS.refuse(
                self.config, f"heights and widths, multiples of the image_size {self.side},"
            )
        pairs = tuple((int(height), int(width)) for height, width in points.reshape(-1, 2))
        return Anyres(size=self.side, patch=self.patch, pinpoints=pairs, mean=mean, std=deviation)

    @property
    def width(self) -> int:
        return self.extent(1, "mm.2.weight")

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> Placed:
        return in_place(stand_in(tokenizer, "<image>"), picture.tokens)

    def patches(self, picture: Prepared) -> int:
        return self.tiles(picture) * (self.grid**2 + 1)

    def key(self, picture: Prepared) -> Hashable:
        return self.tiles(picture), picture.tokens

    @staticmethod
    def tiles(picture: Prepared) -> int:
        """The squares that are encoded, the whole picture among them."""
        return int(picture.pixels.size // (3 * picture.pixels.shape[-1] ** 2))

    def network(self, backend: Backend) -> Network:
        return _Network(self, backend)

    def rows(self, pictures: Pictures) -> NDArray[np.int32]:
        """The features that become rows: the column of each, or the one after the last for a new line."""
        n, tiles = self.grid**2, self.tiles(pictures[0])
        line = n * tiles * len(pictures)
        found = [self._rows(picture, n * tiles * number, line) for number, picture in enumerate(pictures)]
        return np.concatenate(found).astype(np.int32)

    def _rows(self, picture: Prepared, first: int, line: int) -> NDArray[np.int64]:
        n = self.grid**2
        whole = first + np.arange(n)
        if not isinstance(self.preparation, Anyres):
            return whole
        tiles = (first + n + np.arange(picture.grid[0] * picture.grid[1] * n)).reshape(
            *picture.grid, self.grid, -1
        )
        canvas = tiles.swapaxes(1, 2).reshape(picture.grid[0] * self.grid, -1)
        rows, columns, top, left = self.preparation.unpadded(picture.size)
        kept = canvas[top : top + rows, left : left + columns]
        lines = np.concatenate([kept, np.full((len(kept), 1), line)], axis=1)
        return np.concatenate([whole, lines.ravel()])


@final
class _Network(Clip):
    def __init__(self, family: Llava, backend: Backend) -> None:
        weights = Weights(backend)
        super().__init__(weights, backend, family.patch, family.grid**2)
        self.family = family
        mm = weights.at("mm.")
        hidden = mm.extent("0.weight", 1)
        self.into = Linear(mm, "0", self.width, hidden)
        self.out = Linear(mm, "2", hidden or 1, family.width)
        tiled = isinstance(family.preparation, Anyres)
        self.newline = weights.need(NEWLINES[0], family.width, or_else=NEWLINES[1:]) if tiled else None
        weights.check()

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: Inputs) -> Tensor:
        x = self.out(ctx, gelu_erf(ctx, self.into(ctx, self.features(ctx, x))))
        if self.newline is None:
            return x
        x = x.concat(ctx, floats(ctx, self.newline).reshape(ctx, -1, 1), 1)
        return x.rows(ctx, inputs.leaf("rows", self.family.rows))
