"""Gemma 4: dense, with experts, and the small models with embeddings for each block."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import final

from backbay import Context, Tensor

from ... import keys
from ...batch import Batch
from ...nn import (
    ACTIVATIONS,
    Embedding,
    Experts,
    Factors,
    GatedFeedForward,
    Linear,
    RMSNorm,
    Rope,
    Shape,
    Weights,
    attend,
)
from .family import Gemma

PER_LAYER = "per_layer"  # the tap of the embeddings for all blocks, (layer width, blocks, tokens)


@final
class Attention:
    """Norms of queries, keys and values; scores are not scaled. The last blocks see keys and values of earlier ones.

    source  the block whose keys and values this one sees
    """

    def __init__(self, weights: Weights, shape: Shape, rope: Rope, source: int, *, owns: bool) -> None:
        self.shape, self.rope, self.source = shape, rope, source
        self.query = Linear(weights, "attn_q", shape.width, shape.heads * shape.head)
        self.query_norm = RMSNorm(weights, "attn_q_norm", shape.head)
        self.key = self.value = self.key_norm = None
        if owns:
            self.key = Linear(weights, "attn_k", shape.width, shape.kv_heads * shape.head)
            self.key_norm = RMSNorm(weights, "attn_k_norm", shape.head)
            if "attn_v.weight" in weights:
                self.value = Linear(weights, "attn_v", shape.width, shape.kv_heads * shape.head)
        self.output = Linear(weights, "attn_output", shape.heads * shape.head, shape.width)

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
        a = attend(ctx, self.source, q, k, v, batch.cache, 1.0)
        return self.output(ctx, a.reshape(ctx, -1, batch.size))


@final
class MixedFeedForward:
    """A feed-forward and experts side by side, each between norms; the router sees another norm."""

    def __init__(self, weights: Weights, shape: Shape) -> None:
        width = shape.width
        hidden = keys.HIDDEN.of(weights.config)
        self.plain = GatedFeedForward(weights, replace(shape, hidden=hidden), "gelu")
        self.plain_norm = RMSNorm(weights, "ffn_norm", width)
        self.after_plain = RMSNorm(weights, "post_ffw_norm_1", width)
        self.router = weights.need("ffn_gate_inp.weight", width, shape.experts)
        self.router_scale = weights.need("ffn_gate_inp.scale", width)
        self.experts = Experts(weights, shape, ACTIVATIONS["gelu"], router=self.score)
        self.experts_norm = RMSNorm(weights, "pre_ffw_norm_2", width)
        self.after_experts = RMSNorm(weights, "post_ffw_norm_2", width)

    def score(self, ctx: Context, x: Tensor) -> Tensor:
        normed = x.rms_norm(ctx, self.router_scale, eps=self.plain_norm.eps)
        return self.router.mulmat(ctx, normed.scale(ctx, x.dim(0) ** -0.5))

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        plain = self.after_plain(ctx, self.plain(ctx, self.plain_norm(ctx, x)))
        ids, share = self.experts.routing(ctx, self.score(ctx, x))
        mixed = self.experts.weighted(ctx, self.experts_norm(ctx, x), ids, share)
        return plain.add(ctx, self.after_experts(ctx, mixed))


@final
class Block:
    """Norms around each branch, then the block's own embeddings of the tokens, and a scale."""

    def __init__(self, weights: Weights, shape: Shape, attention: Attention, layer_width: int) -> None:
        width = shape.width
        self.attention, self.rope = attention, attention.rope
        self.attention_norm = RMSNorm(weights, "attn_norm", width)
        self.after_attention = RMSNorm(weights, "post_attention_norm", width)
        self.mixed = MixedFeedForward(weights, shape) if shape.experts else None
        if self.mixed is None:
            self.feed_forward_norm = RMSNorm(weights, "ffn_norm", width)
            self.feed_forward = GatedFeedForward(weights, shape, "gelu")
        self.after_feed_forward = RMSNorm(weights, "post_ffw_norm", width)
        self.gate = None
        if layer_width:
            self.gate = Linear(weights, "inp_gate", width, layer_width)
            self.project = Linear(weights, "proj", layer_width, width)
            self.after_project = RMSNorm(weights, "post_norm", width)
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
        if self.gate is not None:
            own = batch.taps[PER_LAYER].slice(ctx, 1, layer, layer + 1).contiguous(ctx)
            own = own.reshape(ctx, own.dim(0), batch.size)
            own = batch.select(ctx, own) if last else own
            h = self.gate(ctx, x).gelu(ctx, own)
            x = x.add(ctx, self.after_project(ctx, self.project(ctx, h)))
        return x if self.scale is None else x.mul(ctx, self.scale)


@final
class Gemma4(Gemma):
    """Blocks with a window have shorter heads; only the others have rotary factors, for heads rotated in part."""

    def block(self, weights: Weights, layer: int) -> Block:
        config, shape = self.config, Shape.of(self.config, layer)
        count, here = len(self.slides), weights.at(f"blk.{layer}.")
        if self.slides[layer]:
            head = keys.WINDOW_KEY_LENGTH.of(config, shape.head)
            shape = replace(shape, head=head, value_head=head)
            base = keys.WINDOW_BASE.of(config, 1e4)
            rope = Rope(config, shape, "neox", base=base, rotated=keys.WINDOW_ROTATED, scaled=False)
        else:
            rope = Rope(config, shape, "neox", factors=Factors.of(weights, shape))
        owners = count - keys.SHARED_CACHES.of(config, 0)
        alike = [n for n in range(min(layer + 1, owners)) if self.slides[n] == self.slides[layer]]
        if not alike:
            raise keys.SHARED_CACHES.refuse(
                config, f"fewer blocks, so that block {layer} has another to share with,"
            )
        attention = Attention(here, shape, rope, alike[-1], owns=layer < owners)
        return Block(here, shape, attention, keys.LAYER_WIDTH.of(config, 0))

    def declare(self, weights: Weights) -> None:
        own, count = keys.LAYER_WIDTH.of(self.config, 0), len(self.blocks)
        self.layer_width = own
        if own:
            self.layer_embedding = Embedding(
                weights, "per_layer_token_embd", own * count, self.vocabulary_size
            )
            self.layer_projection = Linear(weights, "per_layer_model_proj", self.width, own * count)
            self.layer_norm = RMSNorm(weights, "per_layer_proj_norm", own)

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        x = super().embed(ctx, batch)
        own = self.layer_width
        if own:
            shape = (own, len(self.blocks), batch.size)
            table = self.layer_embedding(ctx, batch.tokens).scale(ctx, sqrt(own)).reshape(ctx, *shape)
            projected = self.layer_projection(ctx, x).scale(ctx, self.width**-0.5).reshape(ctx, *shape)
            both = self.layer_norm(ctx, projected).add(ctx, table).scale(ctx, 0.5**0.5)
            batch.tap(PER_LAYER, both)
        return x
