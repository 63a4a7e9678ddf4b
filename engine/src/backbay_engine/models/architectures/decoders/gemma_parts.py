"""The parts of Gemma 3n and 4: embeddings of the tokens for each block, and attention over other blocks' keys."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import final

from backbay import Context, Tensor
from backbay.gguf import Config

from ... import keys, nn
from ...batch import Batch

PER_LAYER = "per_layer"  # the tap of the embeddings for all blocks, (layer width, blocks, tokens)


@final
class LayerEmbeddings:
    """The embeddings for all blocks: from a table, and from the tokens' main embeddings."""

    def __init__(self, weights: nn.Weights, width: int, own: int, blocks: int) -> None:
        self.own, self.blocks, self.width = own, blocks, width
        tokens = weights.extent("token_embd.weight", 1)
        self.table = nn.Embedding(weights, "per_layer_token_embd", own * blocks, tokens)
        self.project = nn.Linear(weights, "per_layer_model_proj", width, own * blocks)
        self.norm = nn.RMSNorm(weights, "per_layer_proj_norm", own)

    def __call__(self, ctx: Context, x: Tensor, batch: Batch) -> None:
        shape = (self.own, self.blocks, batch.size)
        table = self.table(ctx, batch.tokens).scale(ctx, sqrt(self.own)).reshape(ctx, *shape)
        projected = self.project(ctx, x).scale(ctx, self.width**-0.5).reshape(ctx, *shape)
        batch.tap(PER_LAYER, self.norm(ctx, projected).add(ctx, table).scale(ctx, 0.5**0.5))


@final
class OwnEmbedding:
    """A block's part of the embeddings, gated by the tokens' vectors."""

    def __init__(self, weights: nn.Weights, width: int, own: int) -> None:
        self.gate = nn.Linear(weights, "inp_gate", width, own)
        self.project = nn.Linear(weights, "proj", own, width)
        self.norm = nn.RMSNorm(weights, "post_norm", width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        own = batch.taps[PER_LAYER].slice(ctx, 1, layer, layer + 1).contiguous(ctx)
        own = own.reshape(ctx, own.dim(0), batch.size)
        h = self.gate(ctx, x).gelu(ctx, batch.select(ctx, own) if last else own)
        return self.norm(ctx, self.project(ctx, h))


@final
class SharingAttention:
    """Norms of queries, keys and values; scores are not scaled. The last blocks see keys and values of earlier ones.

    source  the block whose keys and values this one sees
    """

    def __init__(
        self, weights: nn.Weights, shape: nn.Shape, rope: nn.Rope, source: int, *, owns: bool
    ) -> None:
        self.shape, self.rope, self.source = shape, rope, source
        self.query = nn.Linear(weights, "attn_q", shape.width, shape.heads * shape.head)
        self.query_norm = nn.RMSNorm(weights, "attn_q_norm", shape.head)
        self.key = self.value = self.key_norm = None
        if owns:
            self.key = nn.Linear(weights, "attn_k", shape.width, shape.kv_heads * shape.head)
            self.key_norm = nn.RMSNorm(weights, "attn_k_norm", shape.head)
            if "attn_v.weight" in weights:
                self.value = nn.Linear(weights, "attn_v", shape.width, shape.kv_heads * shape.head)
        self.output = nn.Linear(weights, "attn_output", shape.heads * shape.head, shape.width)

    def __call__(self, ctx: Context, x: Tensor, batch: Batch) -> Tensor:
        s, k, v = self.shape, None, None
        q = self.query_norm(ctx, self.query(ctx, x).reshape(ctx, s.head, s.heads, batch.size))
        q = self.rope(ctx, q, batch.positions)
        if self.key is not None and self.key_norm is not None:
            made = self.key(ctx, x)
            v = made if self.value is None else self.value(ctx, x)
            k, v = (part.reshape(ctx, s.head, s.kv_heads, batch.size) for part in (made, v))
            k = self.rope(ctx, self.key_norm(ctx, k), batch.positions)
            v = v.rms_norm(ctx, eps=self.key_norm.eps)
        a = nn.attend(ctx, self.source, q, k, v, batch.cache, 1.0)
        return self.output(ctx, a.reshape(ctx, -1, batch.size))


def source_of(config: Config, slides: Sequence[bool], layer: int) -> tuple[int, bool]:
    """The block whose keys and values a block sees, and whether the block makes its own."""
    owners = len(slides) - keys.SHARED_CACHES.of(config, 0)
    alike = [n for n in range(min(layer + 1, owners)) if slides[n] == slides[layer]]
    if not alike:
        raise keys.SHARED_CACHES.refuse(
            config, f"fewer blocks, so that block {layer} has another to share with,"
        )
    return alike[-1], layer < owners
