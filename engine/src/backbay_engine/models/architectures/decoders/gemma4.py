"""Gemma 4: dense, with experts, and the small models with embeddings for each block."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from backbay import Context, Tensor

from ... import keys, nn
from ...batch import Batch
from .gemma import Gemma
from .gemma_parts import LayerEmbeddings, OwnEmbedding, SharingAttention, source_of


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
class Block:
    """Norms around each branch, then the block's own embeddings of the tokens, and a scale."""

    def __init__(
        self, weights: nn.Weights, shape: nn.Shape, attention: SharingAttention, layer_width: int
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
        self.own = OwnEmbedding(weights, width, layer_width) if layer_width else None
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

    def block(self, weights: nn.Weights, layer: int) -> Block:
        config, shape = self.config, nn.Shape.of(self.config, layer)
        here = weights.at(f"blk.{layer}.")
        if self.slides[layer]:
            head = keys.WINDOW_KEY_LENGTH.of(config, shape.head)
            shape = replace(shape, head=head, value_head=head)
            rope = self.local_rope(shape, keys.WINDOW_ROTATED)
        else:
            rope = nn.Rope(config, shape, "neox", factors=nn.Factors.of(weights, shape))
        source, owns = source_of(config, self.slides, layer)
        attention = SharingAttention(here, shape, rope, source, owns=owns)
        return Block(here, shape, attention, keys.LAYER_WIDTH.of(config, 0))

    def declare(self, weights: nn.Weights) -> None:
        own = keys.LAYER_WIDTH.of(self.config, 0)
        self.layers = LayerEmbeddings(weights, self.width, own, len(self.blocks)) if own else None

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        x = super().embed(ctx, batch)
        if self.layers is not None:
            self.layers(ctx, x, batch)
        return x
