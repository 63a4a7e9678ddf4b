"""SigLIP: learned positions, blocks in which all patches of a picture see each other, and a norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor

from ...models.nn import Weights
from .attention import Groups, attend
from .block import Block, FeedForward, gelu
from .norm import Norm
from .patches import PatchEmbedding
from .shape import EncoderShape, floats, present


@final
class Siglip:
    """The tower of an encoder.

    positions   the places of its table
    """

    def __init__(self, weights: Weights, backend: Backend, patch: int, positions: int) -> None:
        self.shape = shape = EncoderShape.of(backend)
        self.width, self.blocks = shape.width, shape.blocks
        v = weights.at("v.")
        self.embedding = PatchEmbedding(v, ("patch_embd", "patch_embedding"), patch, self.width)
        table = present(v, "position_embd", "position_embedding")
        self.table = v.need(f"{table}.weight", self.width, positions)
        blocks = (weights.at(f"v.blk.{n}.") for n in range(self.blocks))
        self.layers = [Block(block, shape, FeedForward(block, shape, gelu)) for block in blocks]
        self.norm = Norm(v, ("post_ln", "post_layernorm"), self.width, shape.eps)

    def start(self, ctx: Context, patches: Tensor, places: Tensor | None = None) -> Tensor:
        """The patches (features, patches, squares), each with the table's vector at its place, all squares alike."""
        n, count = patches.dim(1), patches.dim(2)
        x = self.embedding(ctx, patches.reshape(ctx, -1, n * count)).reshape(ctx, self.width, n, count)
        table = floats(ctx, self.table) if places is None else self.table.rows(ctx, places)
        return x.add(ctx, table).reshape(ctx, self.width, n * count)

    def block(self, ctx: Context, layer: int, x: Tensor, groups: Sequence[Groups]) -> Tensor:
        return self.layers[layer](ctx, x, partial(attend, groups=groups, scale=self.shape.head**-0.5))


def places_in(
    side: int, rows: int, columns: int, fractions: Callable[[int], NDArray[np.float32]]
) -> NDArray[np.int32]:
    """The places of a grid's patches in a table of `side` by `side`, which is stretched over the grid.

    fractions   where so many patches begin, from 0 to 1; the reference's rounding decides between two places
    """
    borders = _arange(1 / side, 1 / side, side - 1)
    row, column = (np.searchsorted(borders, fractions(count), side="right") for count in (rows, columns))
    return (row[:, None] * side + column).ravel().astype(np.int32)


def divided(count: int) -> NDArray[np.float32]:
    """Fractions of transformers: each number divided by the count."""
    return np.arange(count, dtype=np.float32) / np.float32(count)


def stepped(count: int) -> NDArray[np.float32]:
    """Fractions of OpenBMB's code: multiples of a step, which is an element of a tensor in f32."""
    return _arange(0.0, float(np.float32(1) / np.float32(count)), count)


def _arange(first: float, step: float, count: int) -> NDArray[np.float32]:
    """PyTorch's arange in f32: eight numbers at a time from a rounded first one, and the last ones by themselves."""
    exact = first + np.arange(count) * step
    whole = count - count % 16
    bases = exact[:whole:8].astype(np.float32).astype(np.float64)
    exact[:whole] = (bases[:, None] + np.arange(8) * step).ravel()
    return exact.astype(np.float32)
