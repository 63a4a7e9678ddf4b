"""Command R and Command R7B, and other models of Cohere."""

from __future__ import annotations

from typing import ClassVar, final

from backbay import Backend, Context, Tensor

from ... import keys
from ...decoder import Decoder
from ...nn import (
    Attention,
    GatedFeedForward,
    LayerNorm,
    ParallelBlock,
    Rope,
    Shape,
    Weights,
)


class CommandR(Decoder):
    """Attention and feed-forward are parallel; the logits are scaled."""

    def __init__(self, backend: Backend) -> None:
        self.logit_scale = keys.LOGIT_SCALE.of(backend.config, 1.0)
        super().__init__(backend)

    def block(self, weights: Weights, layer: int) -> ParallelBlock:
        shape = Shape.of(self.config, layer)
        rope = Rope(self.config, shape, "normal") if self.rotates(layer) else None
        here = weights.at(f"blk.{layer}.")
        return ParallelBlock(
            LayerNorm(here, "attn_norm", shape.width),
            Attention(here, shape, rope),
            GatedFeedForward(here, shape),
        )

    def rotates(self, layer: int) -> bool:
        """Whether a block knows positions."""
        return True

    def final_norm(self, weights: Weights) -> LayerNorm:
        return LayerNorm(weights, "output_norm", self.width)

    def score(self, ctx: Context, x: Tensor) -> Tensor:
        return super().score(ctx, x).scale(ctx, self.logit_scale)


@final
class Cohere2(CommandR):
    """Blocks with a window know positions, and the others do not."""

    window_pattern: ClassVar[int | None] = 4

    def rotates(self, layer: int) -> bool:
        return self.slides[layer]
