"""T5 and Flan-T5: an encoder reads the prompt, a decoder writes the answer; positions are biases by distance."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import log
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, Backend, Context, DType, Tensor
from backbay.gguf import whole

from ....cache import (
    AttentionOperands,
    BoundEncoderDecoderCache,
    Cache,
    CausalCache,
    EncoderCache,
    EncoderDecoderCache,
)
from ....steps.step import Ints, Step
from ....steps.tokens import encoder_tokens, text_ids
from ... import keys, nn
from ...batch import Batch
from ...contract import Model

START = whole("decoder_start_token_id")
DECODER_BLOCKS = whole("decoder_block_count", 1, keys.MOST_BLOCKS)
BUCKETS = whole("attention.relative_buckets_count", 4, 1 << 16)
FARTHEST = 128  # distances beyond it are one


def distance_buckets(distances: Ints, count: int) -> Ints:
    """The buckets of distances, 0 or more: one for each of the near ones, then ever wider ones."""
    near = count // 2
    ratio = np.log(np.maximum(distances, near).astype(np.float32) / near) / np.float32(log(FARTHEST / near))
    far = near + (ratio * (count - near)).astype(np.int32)
    return np.where(distances < near, distances, np.minimum(far, count - 1)).astype(np.int32)


@final
class T5Block:
    """Attention over the own side, attention over the text in the decoder, and a feed-forward, each behind a norm.

    Positions are in the masks, and scores are not scaled.
    """

    def __init__(self, weights: nn.Weights, shape: nn.Shape, *, crosses: bool) -> None:
        self.norm = nn.RMSNorm(weights, "attn_norm", shape.width)
        self.attention = nn.ContextAttention(weights, "attn_{}", shape, scale=1.0)
        self.cross_norm = nn.RMSNorm(weights, "cross_attn_norm", shape.width) if crosses else None
        self.cross = nn.ContextAttention(weights, "cross_attn_{}", shape, scale=1.0) if crosses else None
        self.feed_forward_norm = nn.RMSNorm(weights, "ffn_norm", shape.width)
        self.feed_forward: nn.FeedForward | nn.GatedFeedForward
        if "ffn_gate.weight" in weights:
            self.feed_forward = nn.GatedFeedForward(weights, shape, "gelu")
        else:
            self.feed_forward = nn.FeedForward(weights, shape, "relu")

    def fed(self, ctx: Context, x: Tensor) -> Tensor:
        return x.add(ctx, self.feed_forward(ctx, self.feed_forward_norm(ctx, x)))


def biased_mask(ctx: Context, table: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """A mask, (history, rows), with the bias of each pair's bucket: (history, rows, heads)."""
    heads, history, rows = table.dim(0), ids.dim(0), ids.dim(1)
    bias = table.rows(ctx, ids.reshape(ctx, history * rows)).reshape(ctx, heads, history, rows)
    return bias.permute(ctx, 2, 0, 1).contiguous(ctx).add(ctx, mask.cast(ctx, DType.F32))


@final
class T5(Model):
    """Steps with texts run both sides; steps of the decoder's tokens alone find the text in the cache."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        config, weights = backend.config, nn.Weights(backend)
        shape = nn.Shape.of(config)
        self.width, self.buckets = shape.width, BUCKETS.of(config, 32)
        self.context = keys.CONTEXT_LENGTH.of(config, 512)
        self._vocabulary = weights.extent("token_embd.weight", 1)
        self.start = START.of(config, 0)
        if self.start >= (self._vocabulary or 1):
            raise START.refuse(config, f"a token below {self._vocabulary}")
        self.embedding = nn.Embedding(weights, "token_embd", shape.width)
        counts = nn.block_count(config), DECODER_BLOCKS.of(config, nn.block_count(config))
        self.encoder, self.decoder = (
            [T5Block(weights.at(f"{side}.blk.{n}."), shape, crosses=side == "dec") for n in range(count)]
            for side, count in zip(("enc", "dec"), counts, strict=True)
        )
        self.tables = [
            weights.need(f"{side}.blk.0.attn_rel_b.weight", shape.heads, self.buckets)
            for side in ("enc", "dec")
        ]
        self.norms = [nn.RMSNorm(weights, f"{side}.output_norm", shape.width) for side in ("enc", "dec")]
        self.tied = "output.weight" not in weights
        self.head = nn.Linear(weights, "output", shape.width, self._vocabulary, or_else=("token_embd",))
        weights.check()

    @property
    def vocabulary_size(self) -> int:
        return self._vocabulary or 0

    def fit(self, context: int) -> None:
        self.context = context

    def new_cache(self) -> Cache:
        causal = CausalCache(lambda ctx, layer, keys, offsets: keys)  # the keys know no positions
        return EncoderDecoderCache(causal, EncoderCache(self.context))

    def prompt(self, ids: Sequence[int]) -> Sequence[int]:
        return [*encoder_tokens(ids), self.start]

    def worst_steps(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Before them a step full of a text, which makes the cells that they see."""
        first = steps[0]
        tokens = np.where(np.arange(first.size) < first.size - 1, np.int32(-1), np.int32(0))
        text = replace(first, tokens=tokens, outputs=np.full_like(first.outputs, first.size - 1))
        return [text, *steps]

    def key(self, step: Step) -> Hashable:
        return int((step.tokens < 0).sum())

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        bound = batch.cache
        if not isinstance(bound, BoundEncoderDecoderCache):
            raise BackbayError(
                "this model attends to a text: its steps need the cache that new_cache() gives"
            )
        if bound.encoder.puts:
            text = self.encode(ctx, batch)
            for layer, block in enumerate(self.decoder):
                assert block.cross is not None
                at = ctx.layer(layer)
                bound.encoder.put(at, layer, *block.cross.pairs(at, text))
        x = self.decode(ctx, batch, bound)
        output = ctx.layer(len(self.decoder))
        x = self.norms[1](output, x.rows(output, batch.input("rows", output_rows)))
        x = x.scale(output, self.width**-0.5) if self.tied else x
        return batch.tap("logits", self.head(output, x))

    def encode(self, ctx: Context, batch: Batch) -> Tensor:
        """The texts of a step, (width, tokens); a token sees the whole of its own text."""
        ids = batch.input("text", lambda step: text_ids(step.tokens[step.tokens < 0]))
        x = self.embedding(ctx.input(), ids)
        mask = biased_mask(
            ctx,
            self.tables[0],
            batch.input("text buckets", self.text_buckets),
            batch.input("apart", text_mask),
        )
        for n, block in enumerate(self.encoder):
            at = ctx.layer(n)
            h = block.norm(at, x)
            seen = AttentionOperands(*block.attention.pairs(at, h), mask, cached=False)
            x = x.add(at, block.attention(at, h, seen))
            x = batch.tap(f"enc.blk.{n}", block.fed(at, x))
        return self.norms[0](ctx.layer(len(self.encoder)), x)

    def decode(self, ctx: Context, batch: Batch, bound: BoundEncoderDecoderCache) -> Tensor:
        """The decoder's tokens of a step, (width, tokens)."""
        x = self.embedding(ctx.input(), batch.input("own", lambda step: step.tokens[step.tokens >= 0]))
        ids = bound.causal.by_distance("buckets", lambda distances: distance_buckets(distances, self.buckets))
        mask = None
        for n, block in enumerate(self.decoder):
            at = ctx.layer(n)
            h = block.norm(at, x)
            bound.causal.put(at, n, *block.attention.pairs(at, h))
            seen = bound.causal.get(at, n)
            if mask is None and seen.mask is not None:
                mask = biased_mask(at, self.tables[1], ids, seen.mask)
            x = x.add(at, block.attention(at, h, replace(seen, mask=mask)))
            if not bound.encoder.is_empty and block.cross is not None and block.cross_norm is not None:
                h = block.cross_norm(at, x)
                x = x.add(at, block.cross(at, h, bound.encoder.get(at, n)))
            x = batch.tap(f"dec.blk.{n}", block.fed(at, x))
        return x

    def text_buckets(self, step: Step) -> Ints:
        """The buckets of all pairs of a step's text tokens: later keys have the second half."""
        positions = step.positions[step.tokens < 0]
        ahead = positions[None, :] - positions[:, None]  # (queries, keys)
        half = self.buckets // 2
        return np.where(ahead > 0, half, 0).astype(np.int32) + distance_buckets(np.abs(ahead), half)


def text_mask(step: Step) -> NDArray[np.float32]:
    """Hides the texts of other sequences, (queries, keys)."""
    sequences = step.sequences[step.tokens < 0]
    return np.where(sequences[:, None] != sequences, np.float32(-np.inf), np.float32(0))


def output_rows(step: Step) -> Ints:
    """The outputs among the decoder's tokens."""
    return (np.cumsum(step.tokens >= 0, dtype=np.int32) - 1)[step.outputs].astype(np.int32)
