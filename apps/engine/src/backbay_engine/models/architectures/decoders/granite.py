"""Granite 3 and 4, dense and with experts; version 4 has Mamba 2 between blocks with attention."""

from __future__ import annotations

from typing import final

from backbay import Backend, Context, Tensor
from backbay.gguf import flag

from ... import keys, nn
from ...bases import Decoder, HybridDecoder
from ...batch import Batch

ROTATES = flag("rope.scaling.finetuned")  # false: the model knows no positions


class Granite(Decoder):
    """Granite 3: embeddings, scores of the attention, residuals and logits have scales of their own."""

    def __init__(self, backend: Backend) -> None:
        config = backend.config
        self.embedding_scale = keys.EMBEDDING_SCALE.of(config, 1.0)
        self.residual_scale = keys.RESIDUAL_SCALE.of(config, 1.0)
        self.logit_divisor = keys.LOGIT_SCALE.of(config, 1.0)
        super().__init__(backend)

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here = weights.at(f"blk.{layer}.")
        feed_forward = nn.feed_forward_of(here, layer)
        return nn.build_block(here, self.mixer(here, layer), feed_forward, residual_scale=self.residual_scale)

    def mixer(self, weights: nn.Weights, layer: int) -> nn.Mixer:
        shape = nn.Shape.of(self.config, layer, feeds=False)
        rope = nn.Rope(self.config, shape, "normal") if ROTATES.of(self.config, True) else None
        scale = keys.SCALE.of(self.config, shape.head**-0.5)
        return nn.Attention(weights, shape, rope, scale=scale, sinks="attn_sinks.weight" in weights)

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        return super().embed(ctx, batch).scale(ctx, self.embedding_scale)

    def score(self, ctx: Context, x: Tensor) -> Tensor:
        return super().score(ctx, x).scale(ctx, 1 / self.logit_divisor)


@final
class GraniteHybrid(Granite, HybridDecoder):
    """Granite 4."""

    def recurs(self, layer: int) -> bool:
        return not nn.attends(self.config, layer)

    def mixer(self, weights: nn.Weights, layer: int) -> nn.Mixer:
        if self.recurs(layer):
            return nn.Mamba2(weights, nn.StateShape.of(self.config))
        return super().mixer(weights, layer)
