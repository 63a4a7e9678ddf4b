"""Qwen 2 VL and 2.5 VL: pictures of any shape, four patches to a row.

The former attends over all patches in all blocks; the latter in windows, and in some blocks over all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.gguf import number, whole, wholes

from ...encoders.block import AttentionGroups
from ...encoders.contract import EncoderInputs, EncoderNetwork
from ...encoders.shape import CLIP, PATCH, EncoderShape, colour_scale, width_key
from ...models.nn import Weights
from ...models.nn.feed_forward import quick_gelu
from ..contract import Pictures
from ..parts.patch_grids import (
    MERGE,
    PatchMerger,
    QwenFamily,
    TimeSlicedEmbedding,
    rotary_positions,
    rotate,
)
from ..parts.patches import repeat_places
from ..parts.towers import VisionTower
from ..preparations.stretched import Qwen2Preparation, QwenPreparation
from ..prepared_picture import Prepared

WINDOW = whole("vision.window_size", 1, 1 << 14)
FULL_EVERY = whole("vision.n_wa_pattern", 1, 1 << 10)
FULL_BLOCKS = wholes("vision.fullatt_block_indexes", 0, 1 << 10)
BASE = number("vision.rope.freq_base", most=1e30, above=1)
PIXELS = whole("vision.min_pixels", 1, 1 << 30), whole("vision.max_pixels", 1, 1 << 30)
ROWS = 4, 4096  # the fewest and the most of a picture
EPSILON = 1e-6  # of all norms of Qwen 2 VL; converters write that of the text model
P = TypeVar("P", bound=QwenPreparation)


def preparation_of(family: QwenFamily, kind: type[P]) -> P:
    """The preparation with the limits and colours of a file."""
    least, most = family.limits(PIXELS, ROWS)
    return kind(
        patch=family.patch,
        merge=family.merge,
        min_pixels=least,
        max_pixels=most,
        **colour_scale(family.config, CLIP),
    )


@final
class Qwen2VLFamily(QwenFamily):
    """A projector file."""

    texts = ("qwen2vl",)
    projections = ("mm.2.weight",)

    def prepares(self) -> Qwen2Preparation:
        self.patch, self.merge = PATCH.of(self.config), MERGE.of(self.config, 2)
        return preparation_of(self, Qwen2Preparation)

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Qwen2VL(self, backend)


@final
class _Qwen2VL(VisionTower):
    def __init__(self, family: Qwen2VLFamily, backend: Backend) -> None:
        weights, self.family = Weights(backend), family
        shape = EncoderShape.of(
            backend, _hidden_width(weights, width_key("vision").of(backend.config)), EPSILON
        )
        super().__init__(replace(shape, eps=EPSILON))
        self.base = BASE.of(backend.config, 1e4)
        self.embedding = TimeSlicedEmbedding(weights.at("v."), family.patch, self.width)
        self.declare(weights, quick_gelu)
        names = ("v.post_ln",), ("mm.0",), ("mm.2",)
        widths = self.width, self.width * family.merge**2, family.width
        self.merger = PatchMerger(weights, names, widths, EPSILON)
        weights.check()

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        return self.embedding(ctx, inputs, self.family.merge)

    def turn(self, ctx: Context, x: Tensor, inputs: EncoderInputs) -> Tensor:
        positions = inputs.leaf("positions", partial(rotary_positions, merge=self.family.merge))
        return rotate(ctx, x, positions, self.base)

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        return self.merger(ctx, x)


def _hidden_width(weights: Weights, width: int) -> int | None:
    """That of the first block's matrices, as converters write another number; old files swap the matrices' names."""
    swapped = weights.extent("v.blk.0.ffn_down.weight", 0) == width
    return weights.extent(f"v.blk.0.ffn_{'down' if swapped else 'up'}.weight", 1)


@final
class Qwen25VLFamily(QwenFamily):
    """A projector file, or a single file."""

    texts = ("qwen2vl", "qwen25vl")
    projections = "mm.2.weight", "v.merger.mlp.2.weight"

    def prepares(self) -> QwenPreparation:
        self.patch, self.merge = PATCH.of(self.config), MERGE.of(self.config, 2)
        self.window = WINDOW.of(self.config, 112) // self.patch // self.merge  # in rows of merged patches
        if not self.window:
            raise WINDOW.refuse(self.config, f"at least {self.patch * self.merge}, a merged patch,")
        return preparation_of(self, QwenPreparation)

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Qwen25VL(self, backend)

    def order(self, picture: Prepared) -> WindowOrder:
        """The order in which a picture's merged patches are encoded."""
        _, rows, columns = picture.grid
        return _order(rows // self.merge, columns // self.merge, self.window)


@dataclass(frozen=True, eq=False)
class WindowOrder:
    """Merged patches, window by window: windows of one size follow each other, so that they are attended together.

    units       the number of each merged patch in rows and columns
    windows     (merged patches of a window, windows)
    """

    units: NDArray[np.int64]
    windows: tuple[tuple[int, int], ...]


@lru_cache(maxsize=64)
def _order(rows: int, columns: int, window: int) -> WindowOrder:
    numbers = np.arange(rows * columns).reshape(rows, columns)
    by_size: dict[int, list[NDArray[np.int64]]] = {}
    for top in range(0, rows, window):
        for left in range(0, columns, window):
            part = numbers[top : top + window, left : left + window].ravel()
            by_size.setdefault(len(part), []).append(part)
    units = np.concatenate([part for parts in by_size.values() for part in parts])
    return WindowOrder(units, tuple((size, len(parts)) for size, parts in by_size.items()))


@final
class _Qwen25VL(VisionTower):
    def __init__(self, family: Qwen25VLFamily, backend: Backend) -> None:
        weights, config = Weights(backend), backend.config
        shape = EncoderShape.of(backend, weights.extent("v.blk.0.ffn_up.weight", 1))
        super().__init__(shape)
        self.family, self.base = family, BASE.of(config, 1e4)
        self.full = self._full_blocks()
        self.embedding = TimeSlicedEmbedding(weights.at("v."), family.patch, self.width)
        self.declare(weights, None)
        names = ("v.post_ln", "v.merger.ln_q"), ("mm.0", "v.merger.mlp.0"), ("mm.2", "v.merger.mlp.2")
        widths = self.width, self.width * family.merge**2, family.width
        self.merger = PatchMerger(weights, names, widths, self.shape.eps, root=True)
        weights.check()

    def _full_blocks(self) -> frozenset[int]:
        """The blocks in which every patch sees all patches of its picture."""
        config = self.family.config
        listed = FULL_BLOCKS.of(config, None)
        if listed is not None:
            return frozenset(map(int, listed))
        every = FULL_EVERY.of(config, 8)
        return frozenset(range(every - 1, self.blocks, every))

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        return self.embedding(ctx, inputs, self.family.merge, self.family.order(inputs.first).units)

    def groups(self, layer: int, positions: int, inputs: EncoderInputs) -> Sequence[AttentionGroups]:
        if layer in self.full:
            return super().groups(layer, positions, inputs)
        windows, each = self.family.order(inputs.first).windows, self.family.merge**2
        return [AttentionGroups(size * each, count) for size, count in windows * inputs.count]

    def turn(self, ctx: Context, x: Tensor, inputs: EncoderInputs) -> Tensor:
        return rotate(ctx, x, inputs.leaf("positions", self._positions), self.base)

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        return self.merger(ctx, x).rows(ctx, inputs.leaf("rows", self._rows))

    def _positions(self, pictures: Pictures) -> NDArray[np.int32]:
        return rotary_positions(pictures, self.family.merge, self.family.order(pictures[0]).units)

    def _rows(self, pictures: Pictures) -> NDArray[np.int32]:
        """Where each merged patch stands in the encoder's order."""
        places = np.argsort(self.family.order(pictures[0]).units)
        return repeat_places(places, len(pictures), len(places))
