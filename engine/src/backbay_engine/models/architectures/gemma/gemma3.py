"""Gemma 3, the text model."""

from __future__ import annotations

from math import sqrt
from typing import final

from backbay import Backend, Context, Tensor
from backbay.gguf import number

from ... import keys
from ...batch import Batch
from ...decoder import Decoder
from ...nn import Attention, Factors, GatedFeedForward, RMSNorm, Rope, Shape, Weights, block_count

SOFTCAP = number("final_logit_softcapping", 1e-3, 1e6, or_zero=True)
LOCAL_BASE = 1e4
LARGEST = 62  # blocks of the 27B model, which scales queries by width / heads


@final
class Block:
    """Norms before and after the attention, and before and after the feed-forward."""

    def __init__(self, weights: Weights, shape: Shape, attention: Attention) -> None:
        self.attention, self.rope = attention, attention.rope
        self.attention_norm = RMSNorm(weights, "attn_norm", shape.width)
        self.after_attention = RMSNorm(weights, "post_attention_norm", shape.width)
        self.feed_forward_norm = RMSNorm(weights, "ffn_norm", shape.width)
        self.feed_forward = GatedFeedForward(weights, shape, "gelu")
        self.after_feed_forward = RMSNorm(weights, "post_ffw_norm", shape.width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        a = self.attention(ctx, layer, self.attention_norm(ctx, x), batch, last=last)
        x = batch.select(ctx, x) if last else x
        x = batch.tap(f"blk.{layer}.attention", x.add(ctx, self.after_attention(ctx, a)))
        h = self.feed_forward(ctx, self.feed_forward_norm(ctx, x))
        return x.add(ctx, self.after_feed_forward(ctx, h))


@final
class Gemma3(Decoder):
    """Most blocks have a window and a rotary base of their own; embeddings are scaled."""

    window_pattern = 6

    def __init__(self, backend: Backend) -> None:
        self.softcap = SOFTCAP.of(backend.config, 0.0)
        super().__init__(backend)

    def block(self, weights: Weights, layer: int) -> Block:
        config, shape = self.config, Shape.of(self.config, layer)
        if self.slides[layer]:
            base = keys.WINDOW_BASE.of(config, LOCAL_BASE)
            rope = Rope(config, shape, "neox", base=base, scaled=False)
        else:
            rope = Rope(config, shape, "neox", factors=Factors.of(weights, shape))
        per_head = shape.width // shape.heads if block_count(config) == LARGEST else shape.head
        scale = keys.SCALE.of(config, per_head**-0.5)
        here = weights.at(f"blk.{layer}.")
        attention = Attention(here, shape, rope, scale=scale, norms=True)
        return Block(here, shape, attention)

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        return super().embed(ctx, batch).scale(ctx, sqrt(self.width))

    def score(self, ctx: Context, x: Tensor) -> Tensor:
        logits = super().score(ctx, x)
        if not self.softcap:
            return logits
        return logits.scale(ctx, 1 / self.softcap).tanh(ctx).scale(ctx, self.softcap)
