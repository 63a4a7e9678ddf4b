"""MiniCPM-V 4.6: SigLIP over the picture and its slices, whose patches are merged twice, within the tower and behind it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.gguf import whole, wholes

from ...models.nn import Linear, Projection, Shape, Weights
from ...text.tokenizers import Tokenizer
from ..contract import Network, Placed
from ..inputs import Inputs, Pictures
from ..parts import Groups, Norm, Siglip, attend, divided, places_in
from ..parts.block import gelu, gelu_erf
from ..parts.patches import Pixels
from ..parts.shape import HALF, PATCH, SIDE, colours
from ..parts.slices import SlicedFamily, patches_of, placed_as_slices
from ..preparations import MergedSlices
from ..prepared import Prepared

MERGE = whole("vision.projector.scale_factor", 2, 4)
INSERTED = wholes("vision.wa_layer_indexes", 0, 1 << 10)
SQUARE = 4  # positions that become one, at each merging
ROW = "<|image_pad|>"


@final
class MiniCPMV46(SlicedFamily):
    """A projector file."""

    placeholder = marker = ROW
    texts = ("qwen35",)

    def prepares(self) -> MergedSlices:
        self.patch, self.merge = PATCH.of(self.config), MERGE.of(self.config, 4)
        if self.merge == 3:
            raise MERGE.refuse(self.config, "2 or 4")
        mean, deviation = colours(self.config, HALF)
        side = SIDE.of(self.config)
        return MergedSlices(size=side, patch=self.patch, merge=self.merge, mean=mean, std=deviation)

    @property
    def width(self) -> int:
        return self.extent(1, "mm.down.weight")

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> Placed:
        counts = [rows * columns // self.merge**2 for rows, columns in self.grids(picture)]
        return placed_as_slices(picture, tokenizer, ROW, counts)

    def network(self, backend: Backend) -> Network:
        return _Network(self, backend)


@final
class _Network(Network):
    """Patches go in an order in which those that are merged follow each other."""

    def __init__(self, family: MiniCPMV46, backend: Backend) -> None:
        weights = Weights(backend)
        self.family = family
        self.side = isqrt(family.extent(1, "v.position_embd.weight")) or 1
        self.tower = Siglip(weights, backend, family.patch, self.side**2)
        self.width, self.blocks = self.tower.width, self.tower.blocks
        self.inserted = self.blocks  # the block after which the tower merges, if any
        if family.merge == SQUARE:
            listed = INSERTED.of(family.config)
            if len(listed) != 1 or listed[0] >= self.blocks:
                raise INSERTED.refuse(family.config, f"one block below {self.blocks}")
            self.inserted = int(listed[0])
            self._declare_inner(weights.at("v.vit_merger."))
        mm, whole = weights.at("mm."), SQUARE * self.width
        self.norm = Norm(mm, ("input_norm",), whole, 1e-6)
        self.into, self.out = Linear(mm, "up", whole, whole), Linear(mm, "down", whole, family.width)
        weights.check()

    def _declare_inner(self, weights: Weights) -> None:
        shape, whole = self.tower.shape, SQUARE * self.width
        heads, head = shape.heads, shape.head
        self.window_norm = Norm(weights, ("ln1",), self.width, shape.eps)
        self.project = Projection(weights, Shape(self.width, heads, heads, head, head, shape.hidden, 0, 0))
        self.output = Linear(weights, "attn_out", self.width, self.width)
        self.inner_norm = Norm(weights, ("ds_ln",), whole, shape.eps)
        self.inner_into = Linear(weights, "ds_ffn_up", whole, SQUARE * shape.hidden)
        self.inner_out = Linear(weights, "ds_ffn_down", SQUARE * shape.hidden, self.width)

    def start(self, ctx: Context, inputs: Inputs) -> Tensor:
        return self.tower.start(
            ctx, inputs.leaf("patches", self._patches), inputs.leaf("places", self._places)
        )

    def block(self, ctx: Context, layer: int, x: Tensor, inputs: Inputs) -> Tensor:
        merged = SQUARE if layer > self.inserted else 1
        x = self.tower.block(ctx, layer, x, self.family.groups(inputs, merged))
        return self._merged(ctx, x) if layer == self.inserted else x

    def _merged(self, ctx: Context, x: Tensor) -> Tensor:
        """Squares whose positions see each other, then one position for each."""
        positions = x.dim(1)
        q, k, v = self.project(ctx, self.window_norm(ctx, x))
        groups = [Groups(SQUARE, positions // SQUARE)]
        a = attend(ctx, q, k, v, groups, self.tower.shape.head**-0.5)
        x = x.add(ctx, self.output(ctx, a.reshape(ctx, self.width, positions)))
        apart = x.reshape(ctx, self.width, SQUARE, positions // SQUARE)
        total = apart.permute(ctx, 1, 0, 2).contiguous(ctx).mean(ctx)  # (1, width, squares)
        h = self.inner_norm(ctx, x.reshape(ctx, SQUARE * self.width, -1))
        h = self.inner_out(ctx, gelu(ctx, self.inner_into(ctx, h)))
        return h.add(ctx, total.reshape(ctx, self.width, -1))

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: Inputs) -> Tensor:
        x = self.norm(ctx, self.tower.norm(ctx, x).reshape(ctx, SQUARE * self.width, -1))
        return self.out(ctx, gelu_erf(ctx, self.into(ctx, x)))

    def _patches(self, pictures: Pictures) -> Pixels:
        order = self._order(pictures[0])
        each = patches_of(pictures, self.family.patch).reshape(len(pictures), len(order), -1)
        return each[:, order].reshape(1, len(pictures) * len(order), -1)

    def _places(self, pictures: Pictures) -> NDArray[np.int32]:
        grids = self.family.grids(pictures[0])
        places = np.concatenate([places_in(self.side, *grid, divided) for grid in grids])
        return np.tile(places[self._order(pictures[0])], len(pictures))

    def _order(self, picture: Prepared) -> NDArray[np.int64]:
        """The patches of each part, row by row of the squares that become a row, then of the squares within."""
        found, start = [], 0
        for rows, columns in self.family.grids(picture):
            numbers = start + np.arange(rows * columns).reshape(rows, columns)
            found.append(_by_squares(numbers, self.family.merge))
            start += rows * columns
        return np.concatenate(found)


def _by_squares(numbers: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    """The numbers of a grid by squares of this side, and those of each square likewise by smaller ones."""
    if side == 1:
        return numbers.ravel()
    rows, columns = (count // side for count in numbers.shape)
    squares = numbers.reshape(rows, side, columns, side).swapaxes(1, 2).reshape(-1, side, side)
    return np.concatenate([_by_squares(square, side // 2) for square in squares])
