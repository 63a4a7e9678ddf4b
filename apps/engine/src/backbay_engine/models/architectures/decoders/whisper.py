"""Whisper's decoder: causal attention over the text, and attention over a sound, in each block."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from backbay import Backend, Context, Tensor
from backbay.gguf import whole

from ....cache import Cache, CausalCache, LayeredCache, MediaCrossAttentionCache
from ... import nn
from ...batch import Batch
from .layer_norm import LayerNormDecoder

POSITIONS = whole("audio.context_length", 1, 1 << 20)
"""Rows of a sound."""


@final
class WhisperBlock:
    """Attention over the text, attention over the sound, and a feed-forward, each behind a norm."""

    rope = None

    def __init__(self, weights: nn.Weights, shape: nn.Shape) -> None:
        self.attention_norm, self.cross_norm, self.feed_forward_norm = (
            nn.LayerNorm(weights, f"{part}_norm", shape.width) for part in ("attn", "cross_attn", "ffn")
        )
        self.attention = nn.Attention(weights, shape, None)
        self.cross = nn.ContextAttention(weights, "cross_attn_{}", shape)
        self.feed_forward = nn.FeedForward(weights, shape)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        x = x.add(ctx, self.attention(ctx, layer, self.attention_norm(ctx, x), batch))
        x = batch.tap(f"blk.{layer}.attention", x)
        bound = nn.context_of(batch)
        if not bound.is_empty:
            a = self.cross(ctx, self.cross_norm(ctx, x), bound.get(ctx, layer))
            x = batch.tap(f"blk.{layer}.cross", x.add(ctx, a))
        x = batch.select(ctx, x) if last else x
        return x.add(ctx, self.feed_forward(ctx, self.feed_forward_norm(ctx, x)))


@final
class Whisper(LayerNormDecoder):
    """The decoder; its encoder is `sound.families.whisper`. Positions are learned, and keys know none."""

    blocks: list[WhisperBlock]  # type: ignore[assignment]

    def __init__(self, backend: Backend) -> None:
        self.rows = POSITIONS.of(backend.config)
        super().__init__(backend)

    @property
    def transcribes(self) -> bool:
        return True

    def declare(self, weights: nn.Weights) -> None:
        self.positions = nn.Positions(weights, self.width)

    def block(self, weights: nn.Weights, layer: int) -> WhisperBlock:
        return WhisperBlock(weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer))

    @property
    def row_widths(self) -> tuple[int, ...]:
        return ()  # a sound goes to cross attention, and nothing else precedes a transcript

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        return super().embed(ctx, batch).add(ctx, self.positions(ctx, batch.positions))

    def fit(self, context: int) -> None:
        self.positions.fit(context)

    def cross(self, ctx: Context, rows: Tensor, put: Callable[[Context, int, Tensor, Tensor], None]) -> None:
        for layer, block in enumerate(self.blocks):
            at = ctx.layer(layer)
            put(at, layer, *block.cross.pairs(at, rows))

    def new_cache(self) -> Cache:
        """Each block attends to both: its layer is the text's unless a model asks for the sound."""
        return LayeredCache([CausalCache(None), MediaCrossAttentionCache(self.rows)], kind=lambda _: 0)
