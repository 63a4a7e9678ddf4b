"""Llama 4: a picture as tiles, each encoded alone, with marks between their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.gguf import number, whole

from ...encoders.block import Norm, TwoLayerPerceptron
from ...encoders.contract import EncoderInputs, EncoderNetwork, MediaPlace, placeholder_id, rows_in_runs
from ...encoders.shape import HALF, EncoderShape, colour_scale, first_present, square_grid
from ...models.nn import Linear, Weights
from ...models.nn.feed_forward import gelu_erf
from ...text.tokenizers import Tokenizer
from ..contract import Pictures, VisionFamily
from ..parts.patches import pixel_shuffle
from ..parts.towers import ClipTower
from ..preparations.tiles import Llama4Preparation
from ..prepared_picture import Prepared

SHUFFLE = whole("vision.projector.scale_factor", 1, 64)
RATIO = number("vision.pixel_shuffle_ratio", 1 / 64, 1)
BASE = number("vision.rope.freq_base", most=1e30, above=1)
EPSILON = 1e-5  # of all norms
TILES = 16
BEGIN, WHOLE, END = "<|image_start|>", "<|image|>", "<|image_end|>"
NEXT, LINE, ROW = "<|tile_x_separator|>", "<|tile_y_separator|>", "<|patch|>"


@final
class Llama4Family(VisionFamily):
    """A projector file, or a single file."""

    placeholder = marker = WHOLE
    texts = ("llama4",)
    projections = "mm.model.fc.weight", "mm.linear_1.weight"

    def prepares(self) -> Llama4Preparation:
        config = self.config
        side, self.patch, self.grid = square_grid(config)
        ratio = RATIO.of(config, None)
        self.shuffle = SHUFFLE.of(config, 2) if ratio is None else round(1 / ratio)
        if self.grid % self.shuffle:
            key = SHUFFLE if ratio is None else RATIO
            raise key.refuse(config, f"a division of {self.grid} by {self.grid} patches into equal squares")
        return Llama4Preparation(
            size=side, patch=self.patch, tiles=TILES, shuffle=self.shuffle, **colour_scale(config, HALF)
        )

    def words(self) -> tuple[str, ...]:
        return BEGIN, NEXT, LINE, WHOLE, END

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> MediaPlace:
        begin, next_, line, whole, end = ([placeholder_id(tokenizer, word)] for word in self.words())
        rows, columns = picture.grid
        between = [begin]
        if rows * columns > 1:
            marks = ([*[next_] * (columns - 1), line] for _ in range(rows))
            between += [mark for each in marks for mark in each]
        between[-1] = between[-1] + whole
        return rows_in_runs(placeholder_id(tokenizer, ROW), (self.grid // self.shuffle) ** 2, [*between, end])

    def cost(self, picture: Prepared) -> int:
        return len(picture.pixels) * (self.grid**2 + 1)

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Network(self, backend)


@final
class _Network(ClipTower):
    class_last = True

    def __init__(self, family: Llama4Family, backend: Backend) -> None:
        weights = Weights(backend)
        shape = replace(EncoderShape.of(backend, eps=EPSILON), eps=EPSILON)
        super().__init__(weights, shape, gelu_erf, family.patch, family.grid**2)
        self.family, self.base = family, BASE.of(backend.config, 1e4)
        v, mm = weights.at("v."), weights.at("mm.")
        self.last_norm = Norm(v, ("post_ln", "layernorm_post"), self.width, EPSILON)
        first = first_present(weights, "mm.model.mlp.1", "v.vision_adapter.mlp.fc1")
        second = first_present(weights, "mm.model.mlp.2", "v.vision_adapter.mlp.fc2")
        out = weights.extent(f"{second}.weight", 1) or 1
        self.adapter = TwoLayerPerceptron(
            weights, (first, second), (self.width * family.shuffle**2, None, out)
        )
        self.projector = Linear(mm, first_present(mm, "model.fc", "linear_1"), out, family.width)
        weights.check()

    def embed(self, weights: Weights) -> Linear:
        name = first_present(weights, "patch_embd", "patch_embedding")
        return Linear(weights, name, 3 * self.patch**2, self.width)

    def turn(self, ctx: Context, x: Tensor, inputs: EncoderInputs) -> Tensor:
        """The first half of a head by the column, the second by the row."""
        half = x.dim(0) // 2
        places = [inputs.leaf(name, partial(self._places, axis=axis)) for axis, name in ((1, "x"), (0, "y"))]
        first, second = (
            x.slice(ctx, 0, at * half, (at + 1) * half, 1).contiguous(ctx).rope(ctx, place, half, self.base)
            for at, place in enumerate(places)
        )
        return first.concat(ctx, second, 0)

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        x = self.features(ctx, self.last_norm(ctx, x))
        x = self.adapter(ctx, pixel_shuffle(ctx, x, self.family.grid, self.family.shuffle))
        return self.projector(ctx, gelu_erf(ctx, x))

    def _places(self, pictures: Pictures, axis: int) -> NDArray[np.int32]:
        """The row or the column of each patch, from 1; the class embedding has 0."""
        places = 1 + np.indices((self.family.grid, self.family.grid))[axis].ravel()
        tiles = sum(len(picture.pixels) for picture in pictures)
        return np.tile(np.append(places, 0), tiles).astype(np.int32)
