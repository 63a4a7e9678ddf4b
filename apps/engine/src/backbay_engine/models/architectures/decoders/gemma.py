"""Gemma 2 and 3, and what all Gemma models share: scaled embeddings, capped logits, norms around every branch."""

from __future__ import annotations

from math import sqrt
from typing import ClassVar, final

from backbay import Backend, Context, Tensor
from backbay.gguf import Key

from ... import keys, nn
from ...bases import Decoder
from ...batch import Batch

LOCAL_BASE = 1e4


class Gemma(Decoder):
    """Embeddings are scaled by the root of the width; logits may be capped."""

    def __init__(self, backend: Backend) -> None:
        self.logit_cap = keys.LOGIT_SOFTCAP.of(backend.config, 0.0)
        super().__init__(backend)

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        return super().embed(ctx, batch).scale(ctx, sqrt(self.width))

    def score(self, ctx: Context, x: Tensor) -> Tensor:
        return nn.capped(ctx, super().score(ctx, x), self.logit_cap)

    def local_rope(self, shape: nn.Shape, rotated: Key[int] = keys.ROTATED) -> nn.Rope:
        """The rotary embedding of a block with a window: its base is its own, and the context is not extended."""
        base = keys.WINDOW_BASE.of(self.config, LOCAL_BASE)
        return nn.Rope(self.config, shape, "neox", base=base, rotated=rotated, scaled=False)

    def score_scale(self, shape: nn.Shape, largest: int) -> float:
        """The scale of the scores; the model with the most blocks divides by the root of width / heads."""
        per_head = shape.width // shape.heads if nn.block_count(self.config) == largest else shape.head
        return keys.SCALE.of(self.config, per_head**-0.5)


@final
class Gemma2(Gemma):
    """Scores of the attention are capped; every other block has a window."""

    window_pattern = 2

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        rope, cap = nn.Rope(self.config, shape, "neox"), keys.SOFTCAP.of(self.config, 0.0)
        attention = nn.Attention(here, shape, rope, scale=self.score_scale(shape, 46), softcap=cap)
        return nn.build_block(here, attention, nn.GatedFeedForward(here, shape, "gelu"), after=True)


class Gemma3(Gemma):
    """Most blocks have a window and a rotary base of their own."""

    window_pattern: ClassVar[int | None] = 6

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        if self.slides[layer]:
            rope = self.local_rope(shape)
        else:
            rope = nn.Rope(self.config, shape, "neox", factors=nn.Factors.of(weights, shape))
        attention = nn.Attention(here, shape, rope, scale=self.score_scale(shape, 62), norms=True)
        return nn.build_block(here, attention, nn.GatedFeedForward(here, shape, "gelu"), after=True)


@final
class GemmaEmbedding(Gemma3):
    """Tokens see both directions; the result is a vector for each text."""

    causal = False
