"""Mamba 2."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor

from ...batch import Batch
from ...hybrid import HybridDecoder
from ...nn import Mamba2, RMSNorm, StateShape, Weights


@final
class Block:
    """x + mixer(norm(x))"""

    rope = None

    def __init__(self, weights: Weights, shape: StateShape) -> None:
        self.norm = RMSNorm(weights, "attn_norm", shape.width)
        self.mixer = Mamba2(weights, shape)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        y = self.mixer(ctx, layer, self.norm(ctx, x), batch, last=last)
        return y.add(ctx, batch.select(ctx, x) if last else x)


@final
class Mamba(HybridDecoder):
    """Blocks of a mixer alone, which keep states instead of keys and values."""

    def block(self, weights: Weights, layer: int) -> Block:
        return Block(weights.at(f"blk.{layer}."), StateShape.of(self.config))
