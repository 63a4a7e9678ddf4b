"""Granite 3, dense and with experts."""

from __future__ import annotations

from typing import final

from backbay import Backend, Context, Tensor

from ... import keys
from ...batch import Batch
from ...decoder import Decoder
from ...nn import Attention, Block, RMSNorm, Rope, Shape, Weights, feed_forward_of


class ScaledDecoder(Decoder):
    """Embeddings, residuals and logits have scales of their own."""

    def __init__(self, backend: Backend) -> None:
        config = backend.config
        self.embedding_scale = keys.EMBEDDING_SCALE.of(config, 1.0)
        self.residual_scale = keys.RESIDUAL_SCALE.of(config, 1.0)
        self.logit_divisor = keys.LOGIT_SCALE.of(config, 1.0)
        super().__init__(backend)

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        return super().embed(ctx, batch).scale(ctx, self.embedding_scale)

    def score(self, ctx: Context, x: Tensor) -> Tensor:
        return super().score(ctx, x).scale(ctx, 1 / self.logit_divisor)


@final
class Granite(ScaledDecoder):
    """The scores of the attention have a scale, too."""

    def block(self, weights: Weights, layer: int) -> Block:
        shape = Shape.of(self.config, layer)
        rope = Rope(self.config, shape, "normal")
        here = weights.at(f"blk.{layer}.")
        return Block(
            RMSNorm(here, "attn_norm", shape.width),
            Attention(
                here,
                shape,
                rope,
                scale=keys.SCALE.of(self.config, shape.head**-0.5),
                sinks="attn_sinks.weight" in here,
            ),
            RMSNorm(here, "ffn_norm", shape.width),
            feed_forward_of(here, layer),
            residual_scale=self.residual_scale,
        )
