"""Embeddings of the tokens for each block, in the small Gemma models."""

from __future__ import annotations

from math import sqrt
from typing import final

from backbay import Context, Tensor

from ...batch import Batch
from ...nn import Embedding, Linear, RMSNorm, Weights

PER_LAYER = "per_layer"  # the tap of the embeddings for all blocks, (layer width, blocks, tokens)


@final
class LayerEmbeddings:
    """The embeddings for all blocks: from a table, and from the tokens' main embeddings."""

    def __init__(self, weights: Weights, width: int, own: int, blocks: int) -> None:
        self.own, self.blocks, self.width = own, blocks, width
        tokens = weights.extent("token_embd.weight", 1)
        self.table = Embedding(weights, "per_layer_token_embd", own * blocks, tokens)
        self.project = Linear(weights, "per_layer_model_proj", width, own * blocks)
        self.norm = RMSNorm(weights, "per_layer_proj_norm", own)

    def __call__(self, ctx: Context, x: Tensor, batch: Batch) -> None:
        shape = (self.own, self.blocks, batch.size)
        table = self.table(ctx, batch.tokens).scale(ctx, sqrt(self.own)).reshape(ctx, *shape)
        projected = self.project(ctx, x).scale(ctx, self.width**-0.5).reshape(ctx, *shape)
        batch.tap(PER_LAYER, self.norm(ctx, projected).add(ctx, table).scale(ctx, 0.5**0.5))


@final
class OwnEmbedding:
    """A block's part of the embeddings, gated by the tokens' vectors."""

    def __init__(self, weights: Weights, width: int, own: int) -> None:
        self.gate = Linear(weights, "inp_gate", width, own)
        self.project = Linear(weights, "proj", own, width)
        self.norm = RMSNorm(weights, "post_norm", width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        own = batch.taps[PER_LAYER].slice(ctx, 1, layer, layer + 1).contiguous(ctx)
        own = own.reshape(ctx, own.dim(0), batch.size)
        h = self.gate(ctx, x).gelu(ctx, batch.select(ctx, own) if last else own)
        return self.norm(ctx, self.project(ctx, h))
