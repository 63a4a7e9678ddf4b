"""Llama 4: a picture as tiles, each encoded alone, with marks between their rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.gguf import number, whole

from ...models.nn import Linear, Weights
from ...text.tokenizers import Tokenizer
from ..contract import Network, Placed, VisionFamily, in_runs, stand_in
from ..inputs import Inputs, Pictures
from ..parts import Block, EncoderShape, FeedForward, Groups, Norm, attend, floats, present
from ..parts.block import gelu_erf
from ..parts.patches import Pixels, patches_of
from ..parts.shape import HALF, colours, grid_of
from ..parts.shuffle import shuffled
from ..preparations import CanvasAndWhole
from ..prepared import Prepared

SHUFFLE = whole("vision.projector.scale_factor", 1, 64)
RATIO = number("vision.pixel_shuffle_ratio", 1 / 64, 1)
BASE = number("vision.rope.freq_base", most=1e30, above=1)
EPSILON = 1e-5  # of all norms
TILES = 16
BEGIN, WHOLE, END = "<|image_start|>", "<|image|>", "<|image_end|>"
NEXT, LINE, ROW = "<|tile_x_separator|>", "<|tile_y_separator|>", "<|patch|>"
PROJECTIONS = "mm.model.fc.weight", "mm.linear_1.weight"


@final
class Llama4(VisionFamily):
    """A projector file, or a single file."""

    placeholder = marker = WHOLE
    texts = ("llama4",)

    def prepares(self) -> CanvasAndWhole:
        config = self.config
        self.side, self.patch = grid_of(config)
        self.grid = self.side // self.patch
        ratio = RATIO.of(config, None)
        self.shuffle = SHUFFLE.of(config, 2) if ratio is None else round(1 / ratio)
        if self.grid % self.shuffle:
            key = SHUFFLE if ratio is None else RATIO
            raise key.refuse(config, f"a division of {self.grid} by {self.grid} patches into equal squares")
        mean, deviation = colours(config, HALF)
        return CanvasAndWhole(
            size=self.side, patch=self.patch, tiles=TILES, shuffle=self.shuffle, mean=mean, std=deviation
        )

    @property
    def width(self) -> int:
        return self.extent(1, *PROJECTIONS)

    def words(self) -> tuple[str, ...]:
        return BEGIN, NEXT, LINE, WHOLE, END

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> Placed:
        begin, next_, line, whole, end = ([stand_in(tokenizer, word)] for word in self.words())
        rows, columns = picture.grid
        between = [begin]
        if rows * columns > 1:
            marks = ([*[next_] * (columns - 1), line] for _ in range(rows))
            between += [mark for each in marks for mark in each]
        between[-1] = between[-1] + whole
        return in_runs(stand_in(tokenizer, ROW), (self.grid // self.shuffle) ** 2, [*between, end])

    def patches(self, picture: Prepared) -> int:
        return len(picture.pixels) * (self.grid**2 + 1)

    def key(self, picture: Prepared) -> Hashable:
        return len(picture.pixels)

    def network(self, backend: Backend) -> Network:
        return _Network(self, backend)


@final
class _Network(Network):
    def __init__(self, family: Llama4, backend: Backend) -> None:
        weights = Weights(backend)
        v, mm = weights.at("v."), weights.at("mm.")
        self.family, self.shape = family, replace(EncoderShape.of(backend, eps=EPSILON), eps=EPSILON)
        self.width, self.blocks = self.shape.width, self.shape.blocks
        self.base, n = BASE.of(backend.config, 1e4), family.grid**2
        self.embedding = Linear(
            v, present(v, "patch_embd", "patch_embedding"), 3 * family.patch**2, self.width
        )
        self.last = v.need("class_embd", self.width, or_else=["class_embedding"])
        self.positions = v.need(
            "position_embd.weight", self.width, n + 1, or_else=["positional_embedding_vlm"]
        )
        self.before, self.after = (
            Norm(v, names, self.width, EPSILON)
            for names in (("pre_ln", "layernorm_pre"), ("post_ln", "layernorm_post"))
        )
        self.layers = [self._block(weights.at(f"v.blk.{n}.")) for n in range(self.blocks)]
        first = present(weights, "mm.model.mlp.1", "v.vision_adapter.mlp.fc1")
        second = present(weights, "mm.model.mlp.2", "v.vision_adapter.mlp.fc2")
        squares = self.width * family.shuffle**2
        between = weights.extent(f"{first}.weight", 1) or 1
        out = weights.extent(f"{second}.weight", 1) or 1
        self.adapter = Linear(weights, first, squares, between), Linear(weights, second, between, out)
        self.projector = Linear(mm, present(mm, "model.fc", "linear_1"), out, family.width)
        weights.check()

    def _block(self, weights: Weights) -> Block:
        return Block(weights, self.shape, FeedForward(weights, self.shape, gelu_erf))

    def start(self, ctx: Context, inputs: Inputs) -> Tensor:
        """The class embedding stands behind the patches: a patch of zeros, whose position includes it."""
        patches = inputs.leaf(
            "patches", partial(_patches, patch=self.family.patch)
        )  # (features, 1 + patches, tiles)
        n, tiles = patches.dim(1), patches.dim(2)
        x = self.embedding(ctx, patches.reshape(ctx, -1, n * tiles)).reshape(ctx, self.width, n, tiles)
        table = floats(ctx, self.positions)
        last = table.slice(ctx, 1, n - 1, n, 1).add(ctx, self.last.reshape(ctx, self.width, 1))
        x = x.add(ctx, table.slice(ctx, 1, 0, n - 1, 1).concat(ctx, last, 1))
        return self.before(ctx, x.reshape(ctx, self.width, n * tiles))

    def block(self, ctx: Context, layer: int, x: Tensor, inputs: Inputs) -> Tensor:
        size = self.family.grid**2 + 1
        groups = [Groups(size, x.dim(1) // size)]
        places = [inputs.leaf(name, partial(self._places, axis=axis)) for axis, name in ((1, "x"), (0, "y"))]

        def attention(ctx: Context, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k = (self._turned(ctx, t, places) for t in (q, k))
            return attend(ctx, q, k, v, groups, self.shape.head**-0.5)

        return self.layers[layer](ctx, x, attention)

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: Inputs) -> Tensor:
        n = self.family.grid**2
        x = self.after(ctx, x).reshape(ctx, self.width, n + 1, -1)
        x = x.slice(ctx, 1, 0, n, 1).contiguous(ctx, self.width, -1)
        x = shuffled(ctx, x, self.family.grid, self.family.shuffle)
        for linear in self.adapter:
            x = gelu_erf(ctx, linear(ctx, x))
        return self.projector(ctx, x)

    def _turned(self, ctx: Context, x: Tensor, places: Sequence[Tensor]) -> Tensor:
        """(head, heads, positions), the first half of a head by the column, the second by the row."""
        half = x.dim(0) // 2
        first, second = (
            x.slice(ctx, 0, at * half, (at + 1) * half, 1).contiguous(ctx).rope(ctx, place, half, self.base)
            for at, place in enumerate(places)
        )
        return first.concat(ctx, second, 0)

    def _places(self, pictures: Pictures, axis: int) -> NDArray[np.int32]:
        """The row or the column of each patch, from 1; the class embedding has 0."""
        places = 1 + np.indices((self.family.grid, self.family.grid))[axis].ravel()
        tiles = sum(len(picture.pixels) for picture in pictures)
        return np.tile(np.append(places, 0), tiles).astype(np.int32)


def _patches(pictures: Pictures, patch: int) -> Pixels:
    """(tiles, patches + 1, features), the last of each tile zeros."""
    return np.pad(patches_of(pictures, patch), ((0, 0), (0, 1), (0, 0)))
