"""Phi-4-multimodal's eye: SigLIP over crops and the whole picture; lines of rows run over all crops, and end with a row."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.gguf import whole

from ...encoders.block import AttentionGroups, TwoLayerPerceptron
from ...encoders.contract import EncoderInputs, EncoderNetwork, MediaPlace, placeholder_id, rows_in_runs
from ...encoders.shape import HALF, as_f32, colour_scale, square_grid
from ...models.nn import Weights
from ...text.tokenizers import Tokenizer
from ..contract import VisionFamily
from ..parts.patches import padded_patches, pool_squares
from ..parts.towers import PlacedTower, multiplied_fractions, stretched_places
from ..preparations.crops import CropsPreparation
from ..prepared_picture import Prepared, Size

CROPS = whole("vision.max_num_tiles", 1, 1 << 10)
MOST_CROPS: Final = 36
IMAGE: Final = "<|image|>"
HIDDEN: Final = -1e30  # a score that leaves nothing


@final
@dataclass(frozen=True, eq=False)
class Crop:
    """A part of a picture, or the whole of it, that is encoded by itself.

    pixels  (1, 3, side, side)
    filled  the rows and columns of patches that are not padding alone, which all patches see
    """

    pixels: NDArray[np.float32]
    filled: Size


@final
class Phi4VisionFamily(VisionFamily):
    placeholder = marker = IMAGE
    texts = ("phi4mm",)
    projections = ("mm.down.weight",)

    def prepares(self) -> CropsPreparation:
        side, self.patch, self.grid = square_grid(self.config)
        crops = CROPS.of(self.config, MOST_CROPS)
        return CropsPreparation(size=side, patch=self.patch, crops=crops, **colour_scale(self.config, HALF))

    @property
    def crops(self) -> CropsPreparation:
        """The preparation, with the limit of rows that was asked for."""
        assert isinstance(self.preparation, CropsPreparation)
        return self.preparation

    def words(self) -> tuple[str, ...]:
        return (IMAGE,)

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> MediaPlace:
        return rows_in_runs(placeholder_id(tokenizer, IMAGE), picture.tokens, [[], []])

    def pieces(self, picture: Prepared) -> list[Crop]:
        """The whole picture, then the crops, line by line."""
        filled, n = self.crops.patches(picture.size), self.grid
        corners = [
            (row * n, column * n) for row in range(picture.grid[0]) for column in range(picture.grid[1])
        ]
        sizes = [(n, n), *((min(n, filled[0] - row), min(n, filled[1] - column)) for row, column in corners)]
        return [Crop(pixels[None], size) for pixels, size in zip(picture.pixels[0], sizes, strict=True)]

    def joined(self, picture: Prepared, rows: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """The lines of the canvas, a row between, and the lines of the whole picture; each line ends with a row."""
        side = self.crops.side
        height, width = self.crops.useful(picture.size)
        ends, between = rows[0][-2:-1], rows[0][-1:]
        squares = [each[:-2].reshape(side, side, -1) for each in rows]
        lines = np.stack(squares[1:]).reshape(*picture.grid, side, side, -1).swapaxes(1, 2)
        canvas = lines.reshape(picture.grid[0] * side, picture.grid[1] * side, -1)[:height, :width]
        return np.concatenate([_ended(canvas, ends), between, _ended(squares[0], ends)])

    def cost(self, _piece: Crop) -> int:
        return self.grid**2

    def key(self, piece: Crop) -> Hashable:  # type: ignore[override]
        return piece.pixels.shape

    def places(self, crops: Sequence[Crop]) -> NDArray[np.int32]:
        """The place of each patch in the table of positions: the table is stretched over the patches that are filled."""
        return np.concatenate([self._places(crop.filled) for crop in crops])

    def _places(self, filled: Size) -> NDArray[np.int32]:
        n = self.grid
        found = np.zeros((n, n), np.int32)
        own = stretched_places(n, *filled, multiplied_fractions)
        found[: filled[0], : filled[1]] = own.reshape(filled)
        return found.ravel()

    def mask(self, crops: Sequence[Crop]) -> NDArray[np.float32]:
        """What is added to scores, (crops, 1, queries, keys): padding is hidden."""
        n = self.grid
        hidden = np.zeros((len(crops), 1, n * n, n, n), np.float32)
        for each, crop in zip(hidden, crops, strict=True):
            each[..., crop.filled[0] :, :] = each[..., crop.filled[1] :] = HIDDEN
        return hidden.reshape(len(crops), 1, n * n, n * n)

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Network(self, backend)


def _ended(lines: NDArray[np.float32], end: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows of lines (lines, columns, width), each line followed by a row."""
    ends = np.broadcast_to(end, (len(lines), 1, lines.shape[2]))
    return np.concatenate([lines, ends], axis=1).reshape(-1, lines.shape[2])


@final
class _Network(PlacedTower):
    def __init__(self, family: Phi4VisionFamily, backend: Backend) -> None:
        weights, self.family = Weights(backend), family
        super().__init__(weights, backend, family.patch, family.grid**2)
        mm = weights.at("mm.")
        self.line_end, self.between = (
            mm.need(f"{name}.weight", self.width) for name in ("line_end", "separator")
        )
        self.product = TwoLayerPerceptron(mm, ("up", "down"), (self.width, family.width, family.width))
        weights.check()

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        patches = inputs.leaf("patches", partial(padded_patches, patch=self.patch))
        return self.embed(ctx, patches, inputs.leaf("places", self.family.places))

    def attend(
        self,
        ctx: Context,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        groups: Sequence[AttentionGroups],
        inputs: EncoderInputs,
    ) -> Tensor:
        q, k, v = (each.reshape(ctx, *each.shape[:2], self.size, inputs.count) for each in (q, k, v))
        mask = inputs.leaf("mask", self.family.mask)
        return q.scaled_dot_product_attention(ctx, k, v, mask, scale=self.shape.head**-0.5)

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        """The rows of each crop, and those that end a line and stand between two pictures."""
        n, width, count = self.family.grid, self.width, inputs.count
        x = x.reshape(ctx, width, n, n, count)
        for dim in (1, 2) if n % 2 else ():  # mirrored behind the end
            x = x.concat(ctx, x.slice(ctx, dim, n - 2, n - 1, 1), dim)
        x = pool_squares(ctx, x).reshape(ctx, width, -1, count)
        ends = (
            as_f32(ctx, each).reshape(ctx, width, 1, 1).repeat(ctx, 2, count)
            for each in (self.line_end, self.between)
        )
        for end in ends:
            x = x.concat(ctx, end, 1)
        return self.product(ctx, x.reshape(ctx, width, -1))
