"""Granite 4: Mamba 2 between blocks with attention, dense and with experts."""

from __future__ import annotations

from typing import final

from backbay import Backend, Context, Tensor
from backbay.gguf import flag

from ... import keys
from ...batch import Batch
from ...hybrid import HybridDecoder
from ...nn import (
    Attention,
    Block,
    Mamba2,
    Mixer,
    RMSNorm,
    Rope,
    Shape,
    StateShape,
    Weights,
    attends,
    feed_forward_of,
)

ROTATES = flag("rope.scaling.finetuned")  # false: the model knows no positions


@final
class GraniteHybrid(HybridDecoder):
    """Embeddings, scores, residuals and logits have scales of their own."""

    def __init__(self, backend: Backend) -> None:
        config = backend.config
        self.embedding_scale = keys.EMBEDDING_SCALE.of(config, 1.0)
        self.residual_scale = keys.RESIDUAL_SCALE.of(config, 1.0)
        self.logit_divisor = keys.LOGIT_SCALE.of(config, 1.0)
        super().__init__(backend)

    def recurs(self, layer: int) -> bool:
        return not attends(self.config, layer)

    def block(self, weights: Weights, layer: int) -> Block:
        here = weights.at(f"blk.{layer}.")
        return Block(
            RMSNorm(here, "attn_norm", self.width),
            self.mixer(here, layer),
            RMSNorm(here, "ffn_norm", self.width),
            feed_forward_of(here, layer),
            residual_scale=self.residual_scale,
        )

    def mixer(self, weights: Weights, layer: int) -> Mixer:
        config = self.config
        if self.recurs(layer):
            return Mamba2(weights, StateShape.of(config))
        shape = Shape.of(config, layer, feeds=False)
        rope = Rope(config, shape, "normal") if ROTATES.of(config, True) else None
        return Attention(weights, shape, rope, scale=keys.SCALE.of(config, shape.head**-0.5))

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        return super().embed(ctx, batch).scale(ctx, self.embedding_scale)

    def score(self, ctx: Context, x: Tensor) -> Tensor:
        return super().score(ctx, x).scale(ctx, 1 / self.logit_divisor)
