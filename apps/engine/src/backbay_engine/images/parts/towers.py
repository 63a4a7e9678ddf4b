"""Towers: networks whose blocks are alike. CLIP and SigLIP are whole ones, but for the rows that they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor

from ...encoders.block import AttentionGroups, Norm, TowerBlock, attend
from ...encoders.contract import EncoderInputs, EncoderNetwork
from ...encoders.shape import EncoderShape, as_f32, first_present
from ...models.nn import Activation, Module, Weights
from ...models.nn.feed_forward import gelu
from .patches import PatchEmbedding, padded_patches


class VisionTower(EncoderNetwork):
    """A network of blocks v.blk.*, in which the positions of a picture, or groups of `size`, see each other."""

    size: int = 0
    layers: list[TowerBlock]

    def __init__(self, shape: EncoderShape) -> None:
        self.shape, self.width, self.blocks = shape, shape.width, shape.blocks

    def declare(self, weights: Weights, activation: Activation | None) -> None:
        """Declare the blocks; `activation` is that of the feed-forwards, None: gates and norms as in Llama."""
        blocks = (weights.at(f"v.blk.{n}.") for n in range(self.blocks))
        self.layers = [TowerBlock(block, self.shape, activation) for block in blocks]

    def block(self, ctx: Context, layer: int, x: Tensor, inputs: EncoderInputs) -> Tensor:
        groups = self.groups(layer, x.dim(1), inputs)
        return self.layers[layer](ctx, x, partial(self.attend, groups=groups, inputs=inputs))

    def groups(self, layer: int, positions: int, inputs: EncoderInputs) -> Sequence[AttentionGroups]:
        """The groups of positions in a block."""
        size = self.size or positions // inputs.count
        return [AttentionGroups(size, positions // size)]

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
        q, k = (self.turn(ctx, each, inputs) for each in (q, k))
        return attend(ctx, q, k, v, groups, self.shape.head**-0.5)

    def turn(self, ctx: Context, x: Tensor, inputs: EncoderInputs) -> Tensor:
        """Queries or keys, (head, heads, positions), turned by their positions; by default as they are."""
        return x


class ClipTower(VisionTower):
    """CLIP over squares of patches: a class embedding before the patches, or behind them, and a norm before the blocks."""

    class_last: ClassVar[bool] = False

    def __init__(
        self, weights: Weights, shape: EncoderShape, activation: Activation, patch: int, patches: int
    ) -> None:
        super().__init__(shape)
        self.patch, self.size = patch, patches + 1
        v = weights.at("v.")
        self.embedding = self.embed(v)
        self.class_embedding = v.need("class_embd", self.width, or_else=["class_embedding"])
        self.positions = v.need(
            "position_embd.weight", self.width, self.size, or_else=["positional_embedding_vlm"]
        )
        self.norm = Norm(v, ("pre_ln", "layernorm_pre"), self.width, shape.eps)
        self.declare(weights, activation)

    def embed(self, weights: Weights) -> Module:
        """Declare the embedding of patches."""
        return PatchEmbedding(weights, ("patch_embd",), self.patch, self.width)

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        """The class is a patch of zeros, whose position includes its embedding."""
        last, n = self.class_last, self.size
        before, after = (0, 1) if last else (1, 0)
        patches = inputs.leaf(
            "patches", partial(padded_patches, patch=self.patch, before=before, after=after)
        )
        count = patches.dim(2)
        x = self.embedding(ctx, patches.reshape(ctx, -1, n * count)).reshape(ctx, self.width, n, count)
        table, at = as_f32(ctx, self.positions), n - 1 if last else 0
        own = table.slice(ctx, 1, at, at + 1, 1).add(ctx, self.class_embedding.reshape(ctx, self.width, 1))
        if last:
            table = table.slice(ctx, 1, 0, n - 1, 1).concat(ctx, own, 1)
        else:
            table = own.concat(ctx, table.slice(ctx, 1, 1, n, 1), 1)
        return self.norm(ctx, x.add(ctx, table).reshape(ctx, self.width, n * count))

    def features(self, ctx: Context, x: Tensor) -> Tensor:
        """(width, patches of all squares), without the class."""
        first = 0 if self.class_last else 1
        squares = x.reshape(ctx, self.width, self.size, -1)
        return squares.slice(ctx, 1, first, first + self.size - 1, 1).contiguous(ctx, self.width, -1)


class PlacedTower(VisionTower):
    """Squares of patches with learned positions.

    positions   the places of the table, and the patches of a square
    """

    def __init__(self, weights: Weights, backend: Backend, patch: int, positions: int) -> None:
        super().__init__(EncoderShape.of(backend))
        self.patch, self.size = patch, positions
        v = weights.at("v.")
        self.embedding = PatchEmbedding(v, ("patch_embd", "patch_embedding"), patch, self.width)
        table = first_present(v, "position_embd", "position_embedding")
        self.table = v.need(f"{table}.weight", self.width, positions)
        self.declare(weights, gelu)

    def embed(self, ctx: Context, patches: Tensor, places: Tensor | None = None) -> Tensor:
        """The patches (features, patches, squares), each with the table's vector at its place; places are those of each
        square, or of all.
        """
        n, count = patches.dim(1), patches.dim(2)
        x = self.embedding(ctx, patches.reshape(ctx, -1, n * count)).reshape(ctx, self.width, n, count)
        table = as_f32(ctx, self.table) if places is None else self.table.rows(ctx, places)
        return x.add(ctx, table.reshape(ctx, self.width, n, -1)).reshape(ctx, self.width, n * count)


class SiglipTower(PlacedTower):
    """SigLIP: a norm stands behind the blocks."""

    def __init__(self, weights: Weights, backend: Backend, patch: int, positions: int) -> None:
        super().__init__(weights, backend, patch, positions)
        self.norm = Norm(weights.at("v."), ("post_ln", "post_layernorm"), self.width, self.shape.eps)

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        return self.embed(ctx, inputs.leaf("patches", partial(padded_patches, patch=self.patch)))


def stretched_places(
    side: int, rows: int, columns: int, fractions: Callable[[int], NDArray[np.float32]]
) -> NDArray[np.int32]:
    """The places of a grid's patches in a table of `side` by `side`, which is stretched over the grid.

    fractions   where so many patches begin, from 0 to 1; the reference's rounding decides between two places
    """
    borders = _arange(1 / side, 1 / side, side - 1)
    row, column = (np.searchsorted(borders, fractions(count), side="right") for count in (rows, columns))
    return (row[:, None] * side + column).ravel().astype(np.int32)


def divided_fractions(count: int) -> NDArray[np.float32]:
    """Fractions of transformers: each number divided by the count."""
    return np.arange(count, dtype=np.float32) / np.float32(count)


def multiplied_fractions(count: int) -> NDArray[np.float32]:
    """Fractions of Phi-4-multimodal: each number times a rounded step, below 1."""
    step = np.float32(1) / np.float32(count)
    fractions: NDArray[np.float32] = np.arange(count, dtype=np.float32) * step
    return fractions.clip(max=np.float32(1 - 1e-6))


def stepped_fractions(count: int) -> NDArray[np.float32]:
    """Fractions of OpenBMB's code: multiples of a step, which is an element of a tensor in f32."""
    return _arange(0.0, float(np.float32(1) / np.float32(count)), count)


def _arange(first: float, step: float, count: int) -> NDArray[np.float32]:
    """PyTorch's arange in f32: eight numbers at a time from a rounded first one, and the last ones by themselves."""
    exact = first + np.arange(count) * step
    whole = count - count % 16
    bases = exact[:whole:8].astype(np.float32).astype(np.float64)
    exact[:whole] = (bases[:, None] + np.arange(8) * step).ravel()
    return exact.astype(np.float32)
