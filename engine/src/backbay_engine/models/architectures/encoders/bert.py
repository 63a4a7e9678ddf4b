"""BERT, for embeddings: one vector for each text, not normalized."""

from __future__ import annotations

from enum import IntEnum
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.gguf import whole

from ....steps.step import Step
from ...batch import Batch
from ...contract import Model
from ...nn import (
    Embedding,
    FeedForward,
    LayerNorm,
    Linear,
    Positions,
    Projection,
    Shape,
    Weights,
    block_count,
)


class Pooling(IntEnum):
    """How the vectors of a text's tokens become one; NONE gives the vectors of the outputs."""

    NONE = 0
    MEAN = 1
    FIRST = 2
    LAST = 3


POOLING = whole("pooling_type", 0, 3, expected="none (0), mean (1), first (2) or last token (3)")


@final
class Block:
    """A norm after the attention and one after the feed-forward."""

    def __init__(self, weights: Weights, shape: Shape) -> None:
        self.project = Projection(weights, shape)
        self.output = Linear(weights, "attn_output", shape.heads * shape.value_head, shape.width)
        self.attention_norm = LayerNorm(weights, "attn_output_norm", shape.width)
        self.feed_forward = FeedForward(weights, shape)
        self.feed_forward_norm = LayerNorm(weights, "layer_output_norm", shape.width)
        self.scale = shape.head**-0.5

    def __call__(self, ctx: Context, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.project(ctx, x)
        a = q.scaled_dot_product_attention(ctx, k, v, mask, scale=self.scale)
        a = self.output(ctx, a.reshape(ctx, -1, x.dim(1)))
        x = self.attention_norm(ctx, x.add(ctx, a))
        return self.feed_forward_norm(ctx, x.add(ctx, self.feed_forward(ctx, x)))


@final
class Bert(Model):
    """Attention in both directions, within each sequence of the step."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        config, weights = backend.config, Weights(backend)
        self.pooling = Pooling(POOLING.of(config, Pooling.NONE))
        width = Shape.of(config).width
        self._vocabulary = weights.extent("token_embd.weight", 1)
        self.embedding = Embedding(weights, "token_embd", width)
        self.positions = Positions(weights, width)
        self.types = Embedding(weights, "token_types", width) if "token_types.weight" in weights else None
        self.norm = LayerNorm(weights, "token_embd_norm", width)
        self.blocks = [
            Block(weights.at(f"blk.{layer}."), Shape.of(config, layer))
            for layer in range(block_count(config))
        ]
        weights.check()
        self.positions.check()

    @property
    def vocabulary_size(self) -> int:
        return self._vocabulary or 0

    def fit(self, context: int) -> None:
        self.positions.fit(context)

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        x = batch.tap("embedding", self.embed(ctx.input(), batch))
        mask = batch.input("mask", self.mask, self.backend.cache_config().mask_dtype)
        for layer, block in enumerate(self.blocks):
            x = batch.tap(f"blk.{layer}", block(ctx.layer(layer), x, mask))
        return batch.tap("pooled", self.pool(ctx.layer(len(self.blocks)), x, batch))

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        """The sum of the embeddings of token, position and type; the type is always the first."""
        x = self.embedding(ctx, batch.tokens).add(ctx, self.positions(ctx, batch.positions))
        if self.types is not None:
            first = batch.input("type", lambda _: np.zeros(1, np.int32))
            x = x.add(ctx, self.types(ctx, first))
        return self.norm(ctx, x)

    def mask(self, step: Step) -> NDArray[np.float32]:
        """Hides the tokens of other sequences; has as many rows as the backend wants."""
        rows = -step.size % self.backend.cache_config().mask_batch_padding
        others = step.sequences[:, None] != step.sequences
        return np.pad(np.where(others, np.float32(-np.inf), np.float32(0)), ((0, rows), (0, 0)))

    def pool(self, ctx: Context, x: Tensor, batch: Batch) -> Tensor:
        """(width, outputs): the vector of each output's text."""
        if self.pooling is Pooling.NONE:
            return batch.select(ctx, x)
        if self.pooling is Pooling.MEAN:
            by_token = x.permute(ctx, 1, 0).contiguous(ctx)  # (tokens, width)
            return by_token.mulmat(ctx, batch.input("shares", shares))
        ends = first_tokens if self.pooling is Pooling.FIRST else last_tokens
        return x.rows(ctx, batch.input("ends", ends))


def shares(step: Step) -> NDArray[np.float32]:
    """(outputs, tokens): the weight of each token in the mean over an output's text."""
    same = step.sequences[step.outputs, None] == step.sequences
    return np.asarray(same / same.sum(1, keepdims=True), np.float32)


def first_tokens(step: Step) -> NDArray[np.int32]:
    """The first token of each output's text."""
    same = step.sequences[step.outputs, None] == step.sequences
    return np.asarray(np.argmax(same, axis=1), np.int32)


def last_tokens(step: Step) -> NDArray[np.int32]:
    """The last token of each output's text."""
    same = step.sequences[step.outputs, None] == step.sequences
    return np.asarray(step.size - 1 - np.argmax(same[:, ::-1], axis=1), np.int32)
