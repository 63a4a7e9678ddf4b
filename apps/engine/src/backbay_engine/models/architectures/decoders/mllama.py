"""Llama 3.2 Vision, the text model: some blocks attend to pictures instead of the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from backbay import Backend, Context, Tensor
from backbay.gguf import whole

from ....cache import Cache, CausalCache, LayeredCache, MediaCrossAttentionCache
from ... import nn
from ...bases import Decoder, DecoderBlock
from ...batch import Batch
from ...keys import CROSS_LAYERS

SIDE, PATCH = whole("vision.image_size", 1, 1 << 14), whole("vision.patch_size", 1, 1 << 14)
TILES = whole("vision.max_num_tiles", 1, 64)
SPARE = 3  # pictures beside one of each sequence


@final
class CrossAttentionBlock:
    """Attention to pictures, and a feed-forward, both behind gates.

    A token before the first picture attends to all pictures and skips the feed-forward, as transformers computes it.
    Meta's own code is said to skip both.
    """

    rope = None

    def __init__(self, weights: nn.Weights, shape: nn.Shape) -> None:
        self.attention_norm = nn.RMSNorm(weights, "attn_norm", shape.width)
        self.attention = nn.ContextAttention(weights, "cross_attn_{}_proj", shape, norms="cross_attn_{}_norm")
        self.attention_gate = weights.need("cross_attn_attn_gate", 1)
        self.feed_forward_norm = nn.RMSNorm(weights, "ffn_norm", shape.width)
        self.feed_forward = nn.GatedFeedForward(weights, shape)
        self.feed_forward_gate = weights.need("cross_attn_mlp_gate", 1)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        bound = nn.context_of(batch)
        if not bound.is_empty:
            a = self.attention(ctx, self.attention_norm(ctx, x), bound.get(ctx, layer))
            x = x.add(ctx, _gated(ctx, a, self.attention_gate, bound.present))
            x = batch.tap(f"blk.{layer}.attention", x)
            h = self.feed_forward(ctx, self.feed_forward_norm(ctx, x))
            x = x.add(ctx, _gated(ctx, h, self.feed_forward_gate, bound.after))
        return batch.select(ctx, x) if last else x


@final
class Mllama(Decoder):
    """A Llama with blocks that see pictures; the placeholder has an embedding, and is never predicted."""

    def __init__(self, backend: Backend) -> None:
        self.crossing = frozenset(CROSS_LAYERS.of(backend.config).tolist())
        super().__init__(backend)

    def predicted(self, weights: nn.Weights) -> int | None:
        return weights.extent("output.weight", 1)

    def block(self, weights: nn.Weights, layer: int) -> DecoderBlock:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        if layer in self.crossing:
            return CrossAttentionBlock(here, shape)
        rope = nn.Rope(self.config, shape, "normal", factors=nn.Factors.of(weights, shape))
        return nn.build_block(here, nn.Attention(here, shape, rope), nn.GatedFeedForward(here, shape))

    def cross(self, ctx: Context, rows: Tensor, put: Callable[[Context, int, Tensor, Tensor], None]) -> None:
        for layer, block in enumerate(self.blocks):
            if isinstance(block, CrossAttentionBlock):
                at = ctx.layer(layer)
                put(at, layer, *block.attention.pairs(at, rows))

    def new_cache(self) -> Cache:
        crossing = self.crossing
        patches = (SIDE.of(self.config, 560) // PATCH.of(self.config, 14)) ** 2
        rows = TILES.of(self.config, 4) * (patches + 1)
        caches = [CausalCache(self.shift), MediaCrossAttentionCache(rows, spare=SPARE)]
        return LayeredCache(caches, kind=lambda layer: int(layer in crossing))


def _gated(ctx: Context, x: Tensor, gate: Tensor, weights: Tensor) -> Tensor:
    """x times the tanh of a gate, and times the weight of each token, (1, tokens)."""
    return x.mul(ctx, gate.tanh(ctx)).mul(ctx, weights)
