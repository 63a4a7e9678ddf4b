"""Qwen 3 VL and Qwen 3.5: pictures of any shape, positions interpolated from a square, and features of several blocks in a row."""

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

from ...models.architectures.decoders.qwen import deepstack_of
from ...models.keys import OLLAMA_DEEPSTACK
from ...models.nn import Weights
from ...models.nn.feed_forward import gelu
from ...text.tokenizers import Tokenizer
from ..contract import Inputs, Network, Pictures
from ..parts.merged import MERGE, GridFamily, Merger, SlicedEmbedding, coordinates, rotary_positions, rotated
from ..parts.shape import BLOCKS, HALF, PATCH, EncoderShape, colours, present
from ..parts.towers import Tower
from ..preparations.stretched import Qwen3Resize
from ..prepared import Prepared

DEEP = whole("vision.is_deepstack_layers", 0, 1)
LEAST, MOST = (whole(f"vision.{name}_edge", 0, 1 << 30) for name in ("shortest", "longest"))  # in pixels
ROWS = 64, 4096
EPSILON = 1e-6  # of all norms; converters write that of the text model
BASE = 1e4
DEEP_TEXTS = "qwen3vl", "qwen3vlmoe"
"""Architectures that add further vectors of rows to the results of their first blocks."""


@final
class Qwen3VL(GridFamily):
    """A projector file, or a single file."""

    texts = ("qwen35", "qwen35moe", *DEEP_TEXTS)
    projections = "mm.2.weight", "v.merger.linear_fc2.weight"

    def prepares(self) -> Qwen3Resize:
        config = self.config
        self.patch, self.merge = PATCH.of(config), MERGE.of(config, 2)
        listed = OLLAMA_DEEPSTACK.of(config, None)
        marked = [n for n in range(BLOCKS.of(config)) if DEEP.of(config, 0, layer=n)]
        self.deep = tuple(marked if listed is None else map(int, listed))
        self.further = len(self.deep)
        least, most = self.limits(LEAST, MOST, ROWS)
        highest = ROWS[1] * (self.patch * self.merge) ** 2
        return Qwen3Resize(
            patch=self.patch,
            merge=self.merge,
            min_pixels=least,
            max_pixels=max(least, min(most, highest)),
            **colours(config, HALF),
        )

    def check_text(self, text: ModelFile, width: int, tokenizer: Tokenizer | None) -> None:
        super().check_text(text, width, tokenizer)
        taken = deepstack_of(text.metadata) if text.metadata.architecture in DEEP_TEXTS else 0
        if taken != self.further:
            expected = f"a projector of rows with {taken} further vectors, as {text.path} takes"
            raise ModelFileError(self.file.path, None, expected, f"{self.further} further vectors")

    def network(self, backend: Backend) -> Network:
        return _Network(self, backend)


@final
class _Network(Tower):
    def __init__(self, family: Qwen3VL, backend: Backend) -> None:
        weights, self.family = Weights(backend), family
        names = ("ffn_up", "mlp.linear_fc1")
        first = present(weights.at("v.blk.0."), *names)
        shape = EncoderShape.of(backend, weights.extent(f"v.blk.0.{first}.weight", 1), EPSILON)
        super().__init__(replace(shape, eps=EPSILON))
        if any(block >= self.blocks for block in family.deep):
            raise OLLAMA_DEEPSTACK.refuse(family.config, f"blocks below {self.blocks}")
        self.keeps = tuple(block + 1 for block in family.deep)
        v = weights.at("v.")
        self.embedding = SlicedEmbedding(v, family.patch, self.width)
        table = f"{present(v, 'position_embd', 'pos_embed')}.weight"
        self.side = isqrt(v.extent(table, 1) or 0)
        self.positions = v.need(table, self.width, self.side**2)
        self.declare(weights, gelu)
        whole = (
            ("v.post_ln", "v.merger.norm"),
            ("mm.0", "v.merger.linear_fc1"),
            ("mm.2", "v.merger.linear_fc2"),
        )
        widths = self.width, self.width * family.merge**2, family.vector
        self.merger = Merger(weights, whole, widths, EPSILON)
        self.further = []
        for number, block in enumerate(family.deep):
            prefixes = f"v.deepstack.{block}.", f"v.deepstack_merger.{number}."
            norm, into, out = (
                tuple(prefix + name for prefix in prefixes for name in (each, f"linear_{each}"))
                for each in ("norm", "fc1", "fc2")
            )
            self.further.append(Merger(weights, (norm, into, out), widths, EPSILON, whole=True))
        weights.check()

    def start(self, ctx: Context, inputs: Inputs) -> Tensor:
        x = self.embedding(ctx, inputs, self.family.merge)
        for corner in range(4):
            found = self.positions.rows(
                ctx, inputs.leaf(f"corner.{corner}", partial(self._corner, corner=corner))
            )
            share = inputs.leaf(f"share.{corner}", partial(self._share, corner=corner))  # (1, patches)
            x = x.add(ctx, found.mul(ctx, share))
        return x

    def turn(self, ctx: Context, x: Tensor, inputs: Inputs) -> Tensor:
        positions = inputs.leaf("positions", partial(rotary_positions, merge=self.family.merge))
        return rotated(ctx, x, positions, BASE)

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: Inputs) -> Tensor:
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
        places = (
            coordinates(picture, self.family.merge).astype(np.float32) * np.float32(self.side - 1) / steps
        )
        low = np.floor(places)
        return low.astype(np.int64), places - low
