"""MiniCPM-V from 2.6 on: SigLIP over a picture and its slices, whose patches lie side by side.

Queries attend to the patches of each part; since 4.6 patches are merged instead, within the tower and behind it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from math import isqrt
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, ModelFileError, Tensor
from backbay.gguf import whole, wholes

from ...encoders.block import (
    AttentionGroups,
    Norm,
    TwoLayerPerceptron,
    attend,
    attend_in_tiles,
    concatenate_pairwise,
    slice_positions,
)
from ...encoders.contract import EncoderInputs, EncoderNetwork, MediaPlace, placeholder_id, rows_in_runs
from ...encoders.shape import HALF, PATCH, SIDE, as_f32, colour_scale
from ...models.nn import Linear, Projection, Weights
from ...models.nn.feed_forward import gelu
from ...text.tokenizers import Tokenizer
from ..contract import Pictures, VisionFamily
from ..parts.patches import Pixels
from ..parts.towers import SiglipTower, divided_fractions, stepped_fractions, stretched_places
from ..preparations.slices import MiniCPMV46Preparation, MiniCPMVPreparation, SlicedPreparation
from ..prepared_picture import Prepared

MARKS = "<image>", "</image>", "<slice>", "</slice>"
NUMBER = "<image_id>{}</image_id>"
VERSION = whole("minicpmv_version", 0, 1 << 20)
OLDEST = 3  # 2.6; older ones have other marks
HEAD = 128  # features of a head of the resampler
MERGE = whole("vision.projector.scale_factor", 2, 4)
INSERTED = wholes("vision.wa_layer_indexes", 0, 1 << 10)
SQUARE = 4  # positions that become one, at each merging


class SlicedFamily(VisionFamily):
    """A family that encodes a picture, and each of its slices."""

    row: ClassVar[str]
    """The token in whose place rows stand."""
    patch: int

    @abstractmethod
    def counts(self, picture: Prepared) -> Sequence[int]:
        """The rows of the whole picture, and of each slice."""

    def words(self) -> tuple[str, ...]:
        return MARKS

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> MediaPlace:
        """The picture, then its slices on lines of text."""
        begin, end, slice_begin, slice_end = MARKS
        rows, columns = picture.grid
        texts = [begin, *(f"{slice_end}{slice_begin}" for _ in range(rows * columns)), slice_end]
        for line in range(1, rows):
            texts[1 + line * columns] = f"{slice_end}\n{slice_begin}"
        texts[1] = texts[1].replace(slice_end, end)
        between = [tokenizer.encode(text, add_special=False) for text in texts]
        placed = rows_in_runs(placeholder_id(tokenizer, self.row), self.counts(picture), between)
        known = tokenizer.token_id(NUMBER.partition("{")[0]) is not None
        return replace(placed, before=NUMBER, numbered=True) if known else placed

    def cost(self, picture: Prepared) -> int:
        return int(picture.pixels.shape[-1]) // self.patch

    def key(self, picture: Prepared) -> Hashable:
        return self.grids(picture)

    def grids(self, picture: Prepared) -> tuple[tuple[int, int], ...]:
        """Rows and columns of patches: of the whole picture, and of each slice."""
        assert isinstance(self.preparation, SlicedPreparation)
        sizes = self.preparation.sizes(picture.size, picture.grid)
        first, each = ((height // self.patch, width // self.patch) for height, width in sizes)
        return (first, *[each] * (picture.grid[0] * picture.grid[1]))


class _Sliced(SiglipTower):
    """The tower over all parts of a picture.

    fractions   the reference's rounding of places
    """

    def __init__(
        self, family: SlicedFamily, backend: Backend, fractions: Callable[[int], NDArray[np.float32]]
    ) -> None:
        self.slices, self.weights, self.fractions = family, Weights(backend), fractions
        self.side = isqrt(family.extent(1, "v.position_embd.weight")) or 1
        super().__init__(self.weights, backend, family.patch, self.side**2)

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        patches, places = (
            inputs.leaf(name, data) for name, data in (("patches", self._patches), ("places", self._places))
        )
        return self.embed(ctx, patches, places)

    def groups(self, layer: int, positions: int, inputs: EncoderInputs) -> list[AttentionGroups]:
        """Each part sees itself alone."""
        first, *others = (rows * columns for rows, columns in self.slices.grids(inputs.first))
        slices = [AttentionGroups(others[0], len(others))] if others else []
        return [AttentionGroups(first, 1), *slices] * inputs.count

    def _patches(self, pictures: Pictures) -> Pixels:
        """(1, patches of all pictures, features)"""
        patch = self.patch
        found = [
            picture.pixels.reshape(3, patch, -1, patch).transpose(2, 0, 1, 3).reshape(1, -1, 3 * patch**2)
            for picture in pictures
        ]
        return np.concatenate(found, axis=1)

    def _places(self, pictures: Pictures) -> NDArray[np.int32]:
        """The place of each patch in the table of positions."""
        grids = self.slices.grids(pictures[0])
        places = np.concatenate([stretched_places(self.side, *grid, self.fractions) for grid in grids])
        return np.tile(places, len(pictures))


@final
class MiniCPMVFamily(SlicedFamily):
    """A projector file of llama.cpp's scripts, as in Ollama's store."""

    placeholder = marker = "(<image>./</image>)"
    projections = ("resampler.proj.weight",)
    row = "<unk>"

    def prepares(self) -> MiniCPMVPreparation:
        if VERSION.of(self.config, OLDEST) < OLDEST:
            raise VERSION.refuse(self.config, f"{OLDEST}, MiniCPM-V 2.6, or a later one,")
        side, self.patch = SIDE.of(self.config), PATCH.of(self.config)
        self.queries = self.extent(1, "resampler.query")
        if not self.queries or self.width % 4:
            expected = "queries resampler.query, and rows of a multiple of 4 features"
            raise ModelFileError(self.file.path, None, expected, f"{self.queries} of {self.width} features")
        return MiniCPMVPreparation(
            size=side, patch=self.patch, tokens=self.queries, **colour_scale(self.config, HALF)
        )

    def counts(self, picture: Prepared) -> Sequence[int]:
        return [self.queries] * len(self.grids(picture))

    def network(self, backend: Backend) -> EncoderNetwork:
        return _MiniCPMV(self, backend)


@final
class _MiniCPMV(_Sliced):
    def __init__(self, family: MiniCPMVFamily, backend: Backend) -> None:
        super().__init__(family, backend, stepped_fractions)
        self.family = family
        here, row, eps = self.weights.at("resampler."), family.width, self.shape.eps
        self.head = HEAD if row % HEAD == 0 else row
        self.query = here.need("query", row, family.queries)
        self.into = Linear(here, "kv", self.width, row)
        self.query_norm, self.key_norm, self.last_norm = (
            Norm(here, (name,), row, eps) for name in ("ln_q", "ln_kv", "ln_post")
        )
        self.queries, self.keys, self.values, self.out = (
            Linear(here, f"attn.{name}", row, row) for name in ("q", "k", "v", "out")
        )
        self.projection = Linear(here, "proj", row, row)
        self.weights.check()

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        x = self.key_norm(ctx, self.into(ctx, self.norm(ctx, x)))
        k = self._heads(ctx, self.keys(ctx, x.add(ctx, inputs.leaf("positions", self._positions))))
        v = self._heads(ctx, self.values(ctx, x))
        q = self._heads(ctx, self.queries(ctx, self.query_norm(ctx, as_f32(ctx, self.query))))
        found, start = [], 0
        for groups in self.groups(self.blocks, x.dim(1), inputs):
            for _ in range(groups.count):
                _, keys, values = slice_positions(ctx, (k, k, v), 2, start, start + groups.size)
                found.append(attend_in_tiles(ctx, q, keys, values, self.head**-0.5))
                start += groups.size
        x = self.out(ctx, concatenate_pairwise(ctx, found, 2).reshape(ctx, self.family.width, -1))
        return self.projection(ctx, self.last_norm(ctx, x))

    def _heads(self, ctx: Context, x: Tensor) -> Tensor:
        return x.reshape(ctx, self.head, self.family.width // self.head, -1)

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


@final
class MiniCPMV46Family(SlicedFamily):
    """A projector file."""

    placeholder = marker = row = "<|image_pad|>"
    texts = ("qwen35",)
    projections = ("mm.down.weight",)

    def prepares(self) -> MiniCPMV46Preparation:
        self.patch, self.merge = PATCH.of(self.config), MERGE.of(self.config, 4)
        if self.merge == 3:
            raise MERGE.refuse(self.config, "2 or 4")
        shades, side = colour_scale(self.config, HALF), SIDE.of(self.config)
        return MiniCPMV46Preparation(size=side, patch=self.patch, merge=self.merge, **shades)

    def counts(self, picture: Prepared) -> Sequence[int]:
        return [rows * columns // self.merge**2 for rows, columns in self.grids(picture)]

    def network(self, backend: Backend) -> EncoderNetwork:
        return _MiniCPMV46(self, backend)


@final
class _MiniCPMV46(_Sliced):
    """Patches go in an order in which those that are merged follow each other."""

    def __init__(self, family: MiniCPMV46Family, backend: Backend) -> None:
        super().__init__(family, backend, divided_fractions)
        self.family = family
        self.inserted = self.blocks  # the block after which the tower merges, if any
        if family.merge == SQUARE:
            listed = INSERTED.of(family.config)
            if len(listed) != 1 or listed[0] >= self.blocks:
                raise INSERTED.refuse(family.config, f"one block below {self.blocks}")
            self.inserted = int(listed[0])
            self._declare_inner(self.weights.at("v.vit_merger."))
        whole = SQUARE * self.width
        self.square_norm = Norm(self.weights, ("mm.input_norm",), whole, 1e-6)
        self.product = TwoLayerPerceptron(self.weights, ("mm.up", "mm.down"), (whole, whole, family.width))
        self.weights.check()

    def _declare_inner(self, weights: Weights) -> None:
        shape, whole = self.shape, SQUARE * self.width
        self.window_norm = Norm(weights, ("ln1",), self.width, shape.eps)
        self.project = Projection(weights, shape.attention)
        self.output = Linear(weights, "attn_out", self.width, self.width)
        self.inner_norm = Norm(weights, ("ds_ln",), whole, shape.eps)
        widths = whole, SQUARE * shape.hidden, self.width
        self.inner = TwoLayerPerceptron(weights, ("ds_ffn_up", "ds_ffn_down"), widths, gelu)

    def block(self, ctx: Context, layer: int, x: Tensor, inputs: EncoderInputs) -> Tensor:
        x = super().block(ctx, layer, x, inputs)
        return self._merged(ctx, x) if layer == self.inserted else x

    def groups(self, layer: int, positions: int, inputs: EncoderInputs) -> list[AttentionGroups]:
        merged = SQUARE if layer > self.inserted else 1
        whole = super().groups(layer, positions, inputs)
        return [AttentionGroups(each.size // merged, each.count) for each in whole]

    def _merged(self, ctx: Context, x: Tensor) -> Tensor:
        """Squares whose positions see each other, then one position for each."""
        positions = x.dim(1)
        q, k, v = self.project(ctx, self.window_norm(ctx, x))
        groups = [AttentionGroups(SQUARE, positions // SQUARE)]
        a = attend(ctx, q, k, v, groups, self.shape.head**-0.5)
        x = x.add(ctx, self.output(ctx, a.reshape(ctx, self.width, positions)))
        apart = x.reshape(ctx, self.width, SQUARE, positions // SQUARE)
        total = apart.permute(ctx, 1, 0, 2).contiguous(ctx).mean(ctx)  # (1, width, squares)
        h = self.inner(ctx, self.inner_norm(ctx, x.reshape(ctx, SQUARE * self.width, -1)))
        return h.add(ctx, total.reshape(ctx, self.width, -1))

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        squares = self.norm(ctx, x).reshape(ctx, SQUARE * self.width, -1)
        return self.product(ctx, self.square_norm(ctx, squares))

    def _patches(self, pictures: Pictures) -> Pixels:
        order = self._order(pictures[0])
        each = super()._patches(pictures).reshape(len(pictures), len(order), -1)
        return each[:, order].reshape(1, len(pictures) * len(order), -1)

    def _places(self, pictures: Pictures) -> NDArray[np.int32]:
        order = self._order(pictures[0])
        return np.tile(super()._places(pictures[:1])[order], len(pictures))

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
