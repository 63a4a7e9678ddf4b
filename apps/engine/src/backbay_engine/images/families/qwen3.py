"""Qwen 3 VL and 3.5: pictures of any shape, four patches to a row.

Positions are interpolated from a square, and a row may have features of several blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import isqrt
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, ModelFileError, Tensor
from backbay.gguf import ModelFile, whole

from ...encoders.contract import EncoderInputs, EncoderNetwork
from ...encoders.shape import HALF, PATCH, EncoderShape, block_count_key, colour_scale, first_present
from ...models.architectures.decoders.qwen import deepstack_blocks
from ...models.keys import OLLAMA_DEEPSTACK
from ...models.nn import Weights
from ...models.nn.feed_forward import gelu
from ...text.tokenizers import Tokenizer
from ..contract import Pictures
from ..parts.patch_grids import (
    MERGE,
    PatchMerger,
    QwenFamily,
    TimeSlicedEmbedding,
    patch_coordinates,
    rotary_positions,
    rotate,
)
from ..parts.towers import VisionTower
from ..preparations.stretched import Qwen3Preparation
from ..prepared_picture import Prepared

EDGES = whole("vision.shortest_edge", 0, 1 << 30), whole("vision.longest_edge", 0, 1 << 30)  # in pixels
DEEP = whole("vision.is_deepstack_layers", 0, 1)
ROWS = 64, 4096  # the fewest and the most of a picture
BASE = 1e4
EPSILON = 1e-6  # of all norms of Qwen 3 VL; converters write that of the text model
DEEP_TEXTS = "qwen3vl", "qwen3vlmoe"
"""Architectures that add further vectors of rows to the results of their first blocks."""


@final
class Qwen3VLFamily(QwenFamily):
    """A projector file, or a single file."""

    texts = ("qwen35", "qwen35moe", *DEEP_TEXTS)
    projections = "mm.2.weight", "v.merger.linear_fc2.weight"

    def prepares(self) -> Qwen3Preparation:
        config = self.config
        self.patch, self.merge = PATCH.of(config), MERGE.of(config, 2)
        listed = OLLAMA_DEEPSTACK.of(config, None)
        marked = [n for n in range(block_count_key("vision").of(config)) if DEEP.of(config, 0, layer=n)]
        self.deep = tuple(marked if listed is None else map(int, listed))
        self.further = len(self.deep)
        least, most = self.limits(EDGES, ROWS)
        highest = ROWS[1] * (self.patch * self.merge) ** 2
        return Qwen3Preparation(
            patch=self.patch,
            merge=self.merge,
            min_pixels=least,
            max_pixels=max(least, min(most, highest)),
            **colour_scale(config, HALF),
        )

    def check_text(self, text: ModelFile, width: int, tokenizer: Tokenizer | None) -> None:
        super().check_text(text, width, tokenizer)
        taken = deepstack_blocks(text.metadata) if text.metadata.architecture in DEEP_TEXTS else 0
        if taken != self.further:
            expected = f"a projector of rows with {taken} further vectors, as {text.path} takes"
            raise ModelFileError(self.file.path, None, expected, f"{self.further} further vectors")

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Qwen3VL(self, backend)


@final
class _Qwen3VL(VisionTower):
    def __init__(self, family: Qwen3VLFamily, backend: Backend) -> None:
        weights, self.family = Weights(backend), family
        names = ("ffn_up", "mlp.linear_fc1")
        first = first_present(weights.at("v.blk.0."), *names)
        shape = EncoderShape.of(backend, weights.extent(f"v.blk.0.{first}.weight", 1), EPSILON)
        super().__init__(replace(shape, eps=EPSILON))
        if any(block >= self.blocks for block in family.deep):
            raise OLLAMA_DEEPSTACK.refuse(family.config, f"blocks below {self.blocks}")
        self.keeps = tuple(block + 1 for block in family.deep)
        v = weights.at("v.")
        self.embedding = TimeSlicedEmbedding(v, family.patch, self.width)
        table = f"{first_present(v, 'position_embd', 'pos_embed')}.weight"
        self.side = isqrt(v.extent(table, 1) or 1)
        self.positions = v.need(table, self.width, self.side**2)
        self.declare(weights, gelu)
        of_rows = (
            ("v.post_ln", "v.merger.norm"),
            ("mm.0", "v.merger.linear_fc1"),
            ("mm.2", "v.merger.linear_fc2"),
        )
        widths = self.width, self.width * family.merge**2, family.vector
        self.merger = PatchMerger(weights, of_rows, widths, EPSILON)
        self.further = []
        for n, block in enumerate(family.deep):
            prefixes = f"v.deepstack.{block}.", f"v.deepstack_merger.{n}."
            norm, into, out = (
                tuple(prefix + name for prefix in prefixes for name in (each, f"linear_{each}"))
                for each in ("norm", "fc1", "fc2")
            )
            self.further.append(PatchMerger(weights, (norm, into, out), widths, EPSILON, whole=True))
        weights.check()

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        x = self.embedding(ctx, inputs, self.family.merge)
        for corner in range(4):
            places = inputs.leaf(f"corner.{corner}", partial(self._corner, corner=corner))
            found = self.positions.rows(ctx, places)
            share = inputs.leaf(f"share.{corner}", partial(self._share, corner=corner))  # (1, patches)
            x = x.add(ctx, found.mul(ctx, share))
        return x

    def turn(self, ctx: Context, x: Tensor, inputs: EncoderInputs) -> Tensor:
        positions = inputs.leaf("positions", partial(rotary_positions, merge=self.family.merge))
        return rotate(ctx, x, positions, BASE)

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        rows = self.merger(ctx, x)
        for merger, state in zip(self.further, kept, strict=True):
            rows = rows.concat(ctx, merger(ctx, state), 0)
        return rows

    def _corner(self, pictures: Pictures, corner: int) -> NDArray[np.int32]:
        """The learned position at a corner of the square of learned positions that holds each patch."""
        low, _ = self._between(pictures[0])
        row, column = np.minimum(low + np.array([[corner // 2], [corner % 2]]), self.side - 1)
        return np.tile(row * self.side + column, len(pictures)).astype(np.int32)

    def _share(self, pictures: Pictures, corner: int) -> NDArray[np.float32]:
        """The weight of the learned position at a corner."""
        _, offset = self._between(pictures[0])
        row, column = (part if far else 1 - part for part, far in zip(offset, divmod(corner, 2), strict=True))
        return np.tile(row * column, len(pictures)).reshape(-1, 1)

    def _between(self, picture: Prepared) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(2, patches): where each patch lies among the learned positions, whose corners are the picture's."""
        _, rows, columns = picture.grid
        steps = np.array([[max(1, rows - 1)], [max(1, columns - 1)]], np.float32)
        at = patch_coordinates(picture, self.family.merge).astype(np.float32)
        places = at * np.float32(self.side - 1) / steps
        low = np.floor(places)
        return low.astype(np.int64), places - low
