"""Gemma 4: dense, with experts, and the small models with embeddings for each block, whose parts Gemma 3n shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import final

from backbay import Context, Tensor
from backbay.gguf import Config

from ... import keys, nn
from ...batch import Batch
from .gemma import Gemma

PER_LAYER = "per_layer"  # the tap of the embeddings for all blocks, (layer width, blocks, tokens)


@final
class BlockEmbeddings:
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
class BlockEmbeddingGate:
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
class Gemma4Attention:
    """The attention of all blocks, with norms of queries, keys and values; scores are not scaled.

    source  the block whose keys and values this one sees
    owns    whether this block has keys and values; the last blocks see those of earlier ones
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


def key_value_source(config: Config, slides: Sequence[bool], layer: int) -> tuple[int, bool]:
    """The block whose keys and values a block sees, and whether the block makes its own."""
    owners = len(slides) - keys.SHARED_CACHES.of(config, 0)
    alike = [n for n in range(min(layer + 1, owners)) if slides[n] == slides[layer]]
    if not alike:
        raise keys.SHARED_CACHES.refuse(
            config, f"fewer blocks, so that block {layer} has another to share with,"
        )
    return alike[-1], layer < owners


@final
class MixedFeedForward:
    """A feed-forward and experts side by side, each between norms; the router sees another norm."""

    def __init__(self, weights: nn.Weights, shape: nn.Shape) -> None:
        width = shape.width
        hidden = keys.HIDDEN.of(weights.config)
        self.plain = nn.GatedFeedForward(weights, replace(shape, hidden=hidden), "gelu")
        self.plain_norm = nn.RMSNorm(weights, "ffn_norm", width)
        self.after_plain = nn.RMSNorm(weights, "post_ffw_norm_1", width)
        self.router = weights.need("ffn_gate_inp.weight", width, shape.experts)
        self.router_scale = weights.need("ffn_gate_inp.scale", width)
        self.experts = nn.Experts(weights, shape, nn.ACTIVATIONS["gelu"], router=self.score)
        self.experts_norm = nn.RMSNorm(weights, "pre_ffw_norm_2", width)
        self.after_experts = nn.RMSNorm(weights, "post_ffw_norm_2", width)

    def score(self, ctx: Context, x: Tensor) -> Tensor:
        normed = x.rms_norm(ctx, self.router_scale, eps=self.plain_norm.eps)
        return self.router.mulmat(ctx, normed.scale(ctx, x.dim(0) ** -0.5))

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        plain = self.after_plain(ctx, self.plain(ctx, self.plain_norm(ctx, x)))
        ids, share = self.experts.routing(ctx, self.score(ctx, x))
        mixed = self.experts.weighted(ctx, self.experts_norm(ctx, x), ids, share)
        return plain.add(ctx, self.after_experts(ctx, mixed))


@final
class Gemma4Block:
    """Norms around each branch, then the block's own embeddings of the tokens, and a scale."""

    def __init__(
        self, weights: nn.Weights, shape: nn.Shape, attention: Gemma4Attention, layer_width: int
    ) -> None:
        width = shape.width
        self.attention, self.rope = attention, attention.rope
        self.attention_norm = nn.RMSNorm(weights, "attn_norm", width)
        self.after_attention = nn.RMSNorm(weights, "post_attention_norm", width)
        self.mixed = MixedFeedForward(weights, shape) if shape.experts else None
        if self.mixed is None:
            self.feed_forward_norm = nn.RMSNorm(weights, "ffn_norm", width)
            self.feed_forward = nn.GatedFeedForward(weights, shape, "gelu")
        self.after_feed_forward = nn.RMSNorm(weights, "post_ffw_norm", width)
        self.own = BlockEmbeddingGate(weights, width, layer_width) if layer_width else None
        self.scale = weights.maybe("layer_output_scale.weight", 1)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        a = self.after_attention(ctx, self.attention(ctx, self.attention_norm(ctx, x), batch))
        x = x.add(ctx, a)
        x = batch.tap(f"blk.{layer}.attention", batch.select(ctx, x) if last else x)
        if self.mixed is not None:
            h = self.mixed(ctx, x)
        else:
            h = self.feed_forward(ctx, self.feed_forward_norm(ctx, x))
        x = x.add(ctx, self.after_feed_forward(ctx, h))
        if self.own is not None:
            x = x.add(ctx, self.own(ctx, layer, x, batch, last=last))
        return x if self.scale is None else x.mul(ctx, self.scale)


@final
class Gemma4(Gemma):
    """Blocks with a window have shorter heads; only the others have rotary factors, for heads rotated in part."""

    def block(self, weights: nn.Weights, layer: int) -> Gemma4Block:
        config, shape = self.config, nn.Shape.of(self.config, layer)
        here = weights.at(f"blk.{layer}.")
        if self.slides[layer]:
            head = keys.WINDOW_KEY_LENGTH.of(config, shape.head)
            shape = replace(shape, head=head, value_head=head)
            rope = self.local_rope(shape, keys.WINDOW_ROTATED)
        else:
            rope = nn.Rope(config, shape, "neox", factors=nn.Factors.of(weights, shape))
        source, owns = key_value_source(config, self.slides, layer)
        attention = Gemma4Attention(here, shape, rope, source, owns=owns)
        return Gemma4Block(here, shape, attention, keys.LAYER_WIDTH.of(config, 0))

    def declare(self, weights: nn.Weights) -> None:
        own = keys.LAYER_WIDTH.of(self.config, 0)
        self.layers = BlockEmbeddings(weights, self.width, own, len(self.blocks)) if own else None

    def begin(self, ctx: Context, x: Tensor, batch: Batch) -> Tensor:
        if self.layers is not None:
            self.layers(ctx, x, batch)
        return x
