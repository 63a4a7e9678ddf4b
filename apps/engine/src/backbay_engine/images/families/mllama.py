"""Llama 3.2 Vision: all tiles of a canvas together, and rows for cross attention."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.gguf import whole, wholes

from ...encoders.block import (
    AttentionGroups,
    Norm,
    TowerBlock,
    attend_in_tiles,
    concatenate_pairwise,
    slice_positions,
)
from ...encoders.contract import EncoderInputs, EncoderNetwork, MediaPlace, placeholder_id
from ...encoders.shape import CLIP, EncoderShape, as_f32, colour_scale, square_grid
from ...models.nn import Linear, Weights
from ...models.nn.feed_forward import gelu_erf
from ...text.tokenizers import Tokenizer
from ..contract import Pictures, VisionFamily
from ..parts.patches import PatchEmbedding, padded_patches, repeat_places
from ..parts.towers import VisionTower
from ..preparations.tiles import MllamaPreparation
from ..prepared_picture import Prepared

TILES = whole("vision.max_num_tiles", 1, 64)
GLOBAL_BLOCKS = whole("vision.global.block_count", 0, 1 << 10)
INTERMEDIATE = wholes("vision.intermediate_layers_indices", 0, 1 << 10)
MARK = "<|image|>"
MULTIPLE = 8  # of positions of a tile; the reference pads with zeros, which the others see


@final
class MllamaFamily(VisionFamily):
    """A single file."""

    placeholder = marker = MARK
    texts = ("mllama",)
    projections = ("mm.0.weight",)
    crosses = True

    def prepares(self) -> MllamaPreparation:
        side, self.patch, grid = square_grid(self.config)
        self.tiles = TILES.of(self.config, 4)
        self.positions = grid**2 + 1  # of a tile, the class embedding first
        self.padded = -(-self.positions // MULTIPLE) * MULTIPLE
        canvas = MllamaPreparation(
            size=side, patch=self.patch, tiles=self.tiles, **colour_scale(self.config, CLIP)
        )
        self.ratios = len(canvas.grids()) + 1  # 0 stands for no picture
        return canvas

    def words(self) -> tuple[str, ...]:
        return (MARK,)

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> MediaPlace:
        ids = np.array([placeholder_id(tokenizer, MARK)], np.int32)
        visible = self.filled(picture) * self.positions
        return MediaPlace(ids, np.zeros(1, np.bool_), advance=1, crosses=True, visible=visible)

    @staticmethod
    def filled(picture: Prepared) -> int:
        """The tiles that hold the picture; the others are padding."""
        return picture.grid[0] * picture.grid[1]

    def cost(self, picture: Prepared) -> int:
        return self.tiles * self.padded

    def key(self, picture: Prepared) -> Hashable:
        return self.filled(picture)

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Network(self, backend)


@final
class _Network(VisionTower):
    """The state holds the positions of the picture's tiles first, then all padding: that of its tiles, then other tiles.

    The picture's positions see everything, padding sees only the picture's positions. The states that join the result
    are the outputs of the listed blocks, as in transformers 5; Meta's code takes their inputs.
    """

    def __init__(self, family: MllamaFamily, backend: Backend) -> None:
        weights, config = Weights(backend), backend.config
        super().__init__(EncoderShape.of(backend))
        self.family, self.own, others = family, self.blocks, GLOBAL_BLOCKS.of(config, 0)
        listed = INTERMEDIATE.of(config, np.empty(0, np.int64))
        if (listed >= self.own).any():
            raise INTERMEDIATE.refuse(config, f"blocks below {self.own}")
        self.keeps = tuple(int(layer) + 1 for layer in listed)
        v, tiles, positions = weights.at("v."), family.tiles, family.positions
        self.embedding = PatchEmbedding(v, ("patch_embd",), family.patch, self.width)
        self.first = v.need("class_embd", self.width)
        self.positions = v.need("position_embd.weight", self.width, positions)
        self.gate = v.need("position_embd.gate", 1)
        sizes = {"pre_": tiles, "": tiles * positions, "post_": tiles}
        self.before, self.within, self.after = (
            (v.need(f"{name}.weight", self.width * size, family.ratios), v.need(f"{name}.gate", 1))
            for name, size in ((f"{place}tile_position_embd", size) for place, size in sizes.items())
        )
        self.pre_norm = Norm(v, ("pre_ln",), self.width, self.shape.eps)
        self.post_norm = Norm(v, ("post_ln",), self.width, self.shape.eps)
        self.declare(weights, gelu_erf)
        blocks = (weights.at(f"v.global.blk.{n}.") for n in range(others))
        self.layers += [TowerBlock(block, self.shape, gelu_erf, gated=True) for block in blocks]
        self.blocks += others
        merged = self.width * (1 + len(self.keeps))
        self.projector = Linear(weights, "mm.0", merged, family.width)
        weights.check()

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        tiles, positions, count = self.family.tiles, self.family.positions, inputs.count
        patches = inputs.leaf("patches", partial(padded_patches, patch=self.family.patch, before=1))
        x = self.embedding(ctx, patches.reshape(ctx, patches.dim(0), -1))  # of (features, positions, tiles)
        x = x.reshape(ctx, self.width, positions, tiles, count)
        ratios = inputs.leaf("ratios", _ratios)
        before = self._by_ratio(ctx, self.before, ratios).reshape(ctx, self.width, 1, tiles, count)
        first = x.slice(ctx, 1, 0, 1, 1).add(ctx, self.first)
        x = first.concat(ctx, x.slice(ctx, 1, 1, positions, 1).add(ctx, before), 1)
        x = x.add(ctx, as_f32(ctx, self.positions).mul(ctx, self.gate))
        by_tile = self._by_ratio(ctx, self.within, ratios)
        x = x.add(ctx, by_tile.reshape(ctx, self.width, positions, tiles, count))
        x = self.pre_norm(ctx, x.reshape(ctx, self.width, -1))
        nothing = inputs.leaf("nothing", lambda _: np.zeros((1, self.width), np.float32))
        return x.concat(ctx, nothing, 1).rows(ctx, inputs.leaf("order", self._order))

    def _by_ratio(self, ctx: Context, table: tuple[Tensor, Tensor], ratios: Tensor) -> Tensor:
        values, gate = table
        return values.rows(ctx, ratios).mul(ctx, gate)

    def block(self, ctx: Context, layer: int, x: Tensor, inputs: EncoderInputs) -> Tensor:
        return super().block(ctx, layer, self._between(ctx, x, inputs) if layer == self.own else x, inputs)

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
        each = self.family.cost(inputs.first)
        seen = self.family.filled(inputs.first) * self.family.positions
        scale, found = self.shape.head**-0.5, []
        for first in range(0, q.dim(2), each):
            picture = slice_positions(ctx, (q, k, v), 2, first, first + each)
            _, own_k, own_v = own = slice_positions(ctx, picture, 2, 0, seen)
            padding = picture[0].slice(ctx, 2, seen, each, 1)
            found.append(attend_in_tiles(ctx, own[0], picture[1], picture[2], scale))
            found.append(attend_in_tiles(ctx, padding, own_k, own_v, scale))
        return concatenate_pairwise(ctx, found, 2)

    def _between(self, ctx: Context, x: Tensor, inputs: EncoderInputs) -> Tensor:
        """The norm after the tiles' own blocks, and the embedding of each tile's place."""
        x = self.post_norm(ctx, x)
        after = self._by_ratio(ctx, self.after, inputs.leaf("ratios", _ratios))
        places = inputs.leaf("tiles", self._tile_numbers)
        return x.add(ctx, after.reshape(ctx, self.width, -1).rows(ctx, places))

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        places = inputs.leaf("places", self._places)
        x = self._between(ctx, x, inputs) if self.own == self.blocks else x
        x = x.rows(ctx, places)
        if kept:
            rows = [each.rows(ctx, places).reshape(ctx, self.width, -1, 1) for each in kept]
            layers = (
                concatenate_pairwise(ctx, rows, 2).permute(ctx, 1, 2, 0).contiguous(ctx)
            )  # (layers, width, rows)
            x = x.concat(ctx, layers.reshape(ctx, self.width * len(kept), -1), 0)
        return self.projector(ctx, x)

    def _slots(self, picture: Prepared) -> NDArray[np.int64]:
        """(positions, 2): tile and position in the tile of each position of the state."""
        tiles, positions = np.indices((self.family.tiles, self.family.padded))
        padding = (tiles >= self.family.filled(picture)) | (positions >= self.family.positions)
        order = np.argsort(padding.ravel(), kind="stable")
        return np.stack([tiles.ravel()[order], positions.ravel()[order]], axis=1)

    def _order(self, pictures: Pictures) -> NDArray[np.int32]:
        """The column of the embedded positions, or the one of zeros after them, for each position of the state."""
        each = self.family.tiles * self.family.positions
        tiles, positions = self._slots(pictures[0]).T
        columns = repeat_places(tiles * self.family.positions + positions, len(pictures), each)
        columns[np.tile(positions >= self.family.positions, len(pictures))] = each * len(pictures)
        return columns

    def _tile_numbers(self, pictures: Pictures) -> NDArray[np.int32]:
        return repeat_places(self._slots(pictures[0])[:, 0], len(pictures), self.family.tiles)

    def _places(self, pictures: Pictures) -> NDArray[np.int32]:
        """The place in the state of each row: tile by tile, without the padding of tiles."""
        tiles, positions = self._slots(pictures[0]).T
        places = np.empty((self.family.tiles, self.family.padded), np.int64)
        places[tiles, positions] = np.arange(len(tiles))
        return repeat_places(places[:, : self.family.positions].ravel(), len(pictures), len(tiles))


def _ratios(pictures: Pictures) -> NDArray[np.int32]:
    return np.array([picture.aspect_ratio_id for picture in pictures], np.int32)
