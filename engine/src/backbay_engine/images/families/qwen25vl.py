"""Qwen 2.5 VL: pictures of any shape, attention in windows and in some blocks over all, four patches to a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.gguf import number, whole, wholes

from ...models.nn import Weights
from ..contract import Inputs, Network, Pictures
from ..parts.attention import Groups
from ..parts.merged import FRAMES, MERGE, GridFamily, Merger, SlicedEmbedding, rotary_positions, rotated
from ..parts.patches import repeated
from ..parts.shape import CLIP, PATCH, EncoderShape, colours
from ..parts.towers import Tower
from ..preparations.stretched import SmartResize
from ..prepared import Prepared

WINDOW = whole("vision.window_size", 1, 1 << 14)
FULL_EVERY = whole("vision.n_wa_pattern", 1, 1 << 10)
FULL_BLOCKS = wholes("vision.fullatt_block_indexes", 0, 1 << 10)
BASE = number("vision.rope.freq_base", most=1e30, above=1)
LEAST, MOST = (whole(f"vision.{name}_pixels", 1, 1 << 30) for name in ("min", "max"))
DEFAULT_ROWS = 4, 4096


@final
class Qwen25VL(GridFamily):
    """A projector file, or a single file."""

    texts = ("qwen2vl", "qwen25vl")
    projections = "mm.2.weight", "v.merger.mlp.2.weight"

    def prepares(self) -> SmartResize:
        self.patch, self.merge = PATCH.of(self.config), MERGE.of(self.config, 2)
        self.window = WINDOW.of(self.config, 112) // self.patch // self.merge  # in rows of merged patches
        if not self.window:
            raise WINDOW.refuse(self.config, f"at least {self.patch * self.merge}, a merged patch,")
        least, most = self.limits(LEAST, MOST, DEFAULT_ROWS)
        return SmartResize(
            patch=self.patch,
            merge=self.merge,
            frames=FRAMES,
            min_pixels=least,
            max_pixels=most,
            **colours(self.config, CLIP),
        )

    def network(self, backend: Backend) -> Network:
        return _Network(self, backend)

    def order(self, picture: Prepared) -> Order:
        """The order in which a picture's merged patches are encoded."""
        _, rows, columns = picture.grid
        return _order(rows // self.merge, columns // self.merge, self.window)


@dataclass(frozen=True, eq=False)
class Order:
    """Merged patches, window by window: windows of one size follow each other, so that they are attended together.

    units       the number of each merged patch in rows and columns
    windows     (merged patches of a window, windows)
    """

    units: NDArray[np.int64]
    windows: tuple[tuple[int, int], ...]


@lru_cache(maxsize=64)
def _order(rows: int, columns: int, window: int) -> Order:
    numbers = np.arange(rows * columns).reshape(rows, columns)
    by_size: dict[int, list[NDArray[np.int64]]] = {}
    for top in range(0, rows, window):
        for left in range(0, columns, window):
            part = numbers[top : top + window, left : left + window].ravel()
            by_size.setdefault(len(part), []).append(part)
    units = np.concatenate([part for parts in by_size.values() for part in parts])
    return Order(units, tuple((size, len(parts)) for size, parts in by_size.items()))


@final
class _Network(Tower):
    def __init__(self, family: Qwen25VL, backend: Backend) -> None:
        weights, config = Weights(backend), backend.config
        shape = EncoderShape.of(backend, weights.extent("v.blk.0.ffn_up.weight", 1))
        super().__init__(shape)
        self.family, self.base = family, BASE.of(config, 1e4)
        self.full = self._full_blocks()
        self.embedding = SlicedEmbedding(weights.at("v."), family.patch, self.width)
        self.declare(weights, None)
        names = ("v.post_ln", "v.merger.ln_q"), ("mm.0", "v.merger.mlp.0"), ("mm.2", "v.merger.mlp.2")
        widths = self.width, self.width * family.merge**2, family.width
        self.merger = Merger(weights, names, widths, self.shape.eps, root=True)
        weights.check()

    def _full_blocks(self) -> frozenset[int]:
        """The blocks in which every patch sees all patches of its picture."""
        config = self.family.config
        listed = FULL_BLOCKS.of(config, None)
        if listed is not None:
            return frozenset(map(int, listed))
        every = FULL_EVERY.of(config, 8)
        return frozenset(range(every - 1, self.blocks, every))

    def start(self, ctx: Context, inputs: Inputs) -> Tensor:
        return self.embedding(ctx, inputs, self.family.merge, self.family.order(inputs.first).units)

    def groups(self, layer: int, positions: int, inputs: Inputs) -> Sequence[Groups]:
        if layer in self.full:
            return super().groups(layer, positions, inputs)
        windows, each = self.family.order(inputs.first).windows, self.family.merge**2
        return [Groups(size * each, count) for size, count in windows * inputs.count]

    def turn(self, ctx: Context, x: Tensor, inputs: Inputs) -> Tensor:
        return rotated(ctx, x, inputs.leaf("positions", self._positions), self.base)

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: Inputs) -> Tensor:
        return self.merger(ctx, x).rows(ctx, inputs.leaf("rows", self._rows))

    def _positions(self, pictures: Pictures) -> NDArray[np.int32]:
        return rotary_positions(pictures, self.family.merge, self.family.order(pictures[0]).units)

    def _rows(self, pictures: Pictures) -> NDArray[np.int32]:
        """Where each merged patch stands in the encoder's order."""
        places = np.argsort(self.family.order(pictures[0]).units)
        return repeated(places, len(pictures), len(places))
