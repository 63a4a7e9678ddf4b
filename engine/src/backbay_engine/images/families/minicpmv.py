"""MiniCPM-V from 2.6 on: SigLIP over the picture and its slices, and queries that attend to the patches of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isqrt
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, ModelFileError, Tensor
from backbay.gguf import whole

from ...models.nn import Linear, Weights
from ...text.tokenizers import Tokenizer
from ..contract import Network, Placed
from ..inputs import Inputs, Pictures
from ..parts import Norm, Siglip, floats, places_in, stepped
from ..parts.attention import joined, sliced, tiled
from ..parts.shape import HALF, PATCH, SIDE, colours
from ..parts.slices import SlicedFamily, patches_of, placed_as_slices
from ..preparations import Slices
from ..prepared import Prepared

VERSION = whole("minicpmv_version", 0, 1 << 20)
OLDEST = 3  # 2.6; older ones have other marks
HEAD = 128  # features of a head of the resampler
ROW = "<unk>"


@final
class MiniCPMV(SlicedFamily):
    """A projector file of llama.cpp's scripts, as in Ollama's store."""

    placeholder = marker = "(<image>./</image>)"

    def prepares(self) -> Slices:
        if VERSION.of(self.config, OLDEST) < OLDEST:
            raise VERSION.refuse(self.config, f"{OLDEST}, MiniCPM-V 2.6, or a later one,")
        self.side, self.patch = SIDE.of(self.config), PATCH.of(self.config)
        self.queries = self.extent(1, "resampler.query")
        if not self.queries or self.width % 4:
            expected = "queries resampler.query, and rows of a multiple of 4 features"
            raise ModelFileError(self.file.path, None, expected, f"{self.queries} of {self.width} features")
        mean, deviation = colours(self.config, HALF)
        return Slices(size=self.side, patch=self.patch, tokens=self.queries, mean=mean, std=deviation)

    @property
    def width(self) -> int:
        return self.extent(1, "resampler.proj.weight")

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> Placed:
        return placed_as_slices(picture, tokenizer, ROW, [self.queries] * len(self.grids(picture)))

    def network(self, backend: Backend) -> Network:
        return _Network(self, backend)


@final
class _Network(Network):
    def __init__(self, family: MiniCPMV, backend: Backend) -> None:
        weights = Weights(backend)
        self.family = family
        self.side = isqrt(family.extent(1, "v.position_embd.weight")) or 1
        self.tower = Siglip(weights, backend, family.patch, self.side**2)
        self.width, self.blocks = self.tower.width, self.tower.blocks
        here, row, eps = weights.at("resampler."), family.width, self.tower.shape.eps
        self.head = HEAD if row % HEAD == 0 else row
        self.query = here.need("query", row, family.queries)
        self.into = Linear(here, "kv", self.width, row)
        self.query_norm, self.norm, self.last_norm = (
            Norm(here, (name,), row, eps) for name in ("ln_q", "ln_kv", "ln_post")
        )
        self.queries, self.keys, self.values, self.out = (
            Linear(here, f"attn.{name}", row, row) for name in ("q", "k", "v", "out")
        )
        self.projection = Linear(here, "proj", row, row)
        weights.check()

    def start(self, ctx: Context, inputs: Inputs) -> Tensor:
        patches = inputs.leaf("patches", partial(patches_of, patch=self.family.patch))
        return self.tower.start(ctx, patches, inputs.leaf("places", self._places))

    def block(self, ctx: Context, layer: int, x: Tensor, inputs: Inputs) -> Tensor:
        return self.tower.block(ctx, layer, x, self.family.groups(inputs))

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: Inputs) -> Tensor:
        x = self.norm(ctx, self.into(ctx, self.tower.norm(ctx, x)))
        k = self._heads(ctx, self.keys(ctx, x.add(ctx, inputs.leaf("positions", self._positions))))
        v = self._heads(ctx, self.values(ctx, x))
        q = self._heads(ctx, self.queries(ctx, self.query_norm(ctx, floats(ctx, self.query))))
        found, start = [], 0
        for groups in self.family.groups(inputs):
            for _ in range(groups.count):
                _, keys, values = sliced(ctx, (k, k, v), 2, start, start + groups.size)
                found.append(tiled(ctx, q, keys, values, self.head**-0.5))
                start += groups.size
        x = self.out(ctx, joined(ctx, found, 2).reshape(ctx, self.family.width, -1))
        return self.projection(ctx, self.last_norm(ctx, x))

    def _heads(self, ctx: Context, x: Tensor) -> Tensor:
        return x.reshape(ctx, self.head, self.family.width // self.head, -1)

    def _places(self, pictures: Pictures) -> NDArray[np.int32]:
        grids = self.family.grids(pictures[0])
        return np.tile(
            np.concatenate([places_in(self.side, *grid, stepped) for grid in grids]), len(pictures)
        )

    def _positions(self, pictures: Pictures) -> NDArray[np.float32]:
        """(patches, features): sines and cosines of the column, then of the row."""
        quarter = self.family.width // 4
        frequencies = 1 / 1e4 ** (np.arange(quarter, dtype=np.float32) / quarter)
        found = []
        for rows, columns in self.family.grids(pictures[0]):
            row, column = np.indices((rows, columns), np.float32).reshape(2, -1, 1)
            angles = [axis * frequencies for axis in (column, row)]
            found.append(np.hstack([part for angle in angles for part in (np.sin(angle), np.cos(angle))]))
        return np.tile(np.concatenate(found).astype(np.float32), (len(pictures), 1))
