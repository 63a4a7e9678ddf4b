"""LFM 2, Qwen 3-Next and Qwen 3.5, with and without experts: recurrent blocks between blocks with attention."""

from __future__ import annotations

from typing import final

from backbay import Backend, Context, Tensor
from backbay.gguf import whole

from ... import nn
from ...bases import HybridDecoder
from ...batch import Batch
from ..decoders.qwen import interleaved_sections

TAPS = whole("shortconv.l_cache", 1, 1 << 10)
RECURRENT = whole("attention.recurrent_layers", 0, 1)
INTERVAL = whole("full_attention_interval", 1)


@final
class ShortConvolution:
    """A convolution over the last few tokens, with a gate before it and one after it."""

    rope = None

    def __init__(self, weights: nn.Weights, width: int, taps: int) -> None:
        self.width = width
        self.enter = nn.Linear(weights, "shortconv.in_proj", width, 3 * width)
        self.convolution = nn.CausalConvolution(weights, "shortconv.conv", taps, width)
        self.leave = nn.Linear(weights, "shortconv.out_proj", width, width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        before, after, x = self.enter(ctx, x).chunk(ctx, 0, self.width)
        y = self.convolution(ctx, layer, before.mul(ctx, x), batch).reshape(ctx, self.width, -1)
        y = after.mul(ctx, y)
        return self.leave(ctx, batch.select(ctx, y) if last else y)


@final
class Lfm2(HybridDecoder):
    """LFM 2: short convolutions. Each head's query and key has a norm."""

    norm_name = "token_embd_norm"

    def recurs(self, layer: int) -> bool:
        return not nn.attends(self.config, layer)

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here = weights.at(f"blk.{layer}.")
        mixer: nn.Attention | ShortConvolution
        if self.recurs(layer):
            mixer = ShortConvolution(here, self.width, TAPS.of(self.config))
        else:
            shape = nn.Shape.of(self.config, layer)
            mixer = nn.Attention(here, shape, nn.Rope(self.config, shape, "neox"), norms=True)
        return nn.build_block(here, mixer, nn.feed_forward_of(here, layer))


@final
class GroupedDeltaNet(nn.DeltaNet):
    """Consecutive value heads share a key head, and its controls lie together."""

    def __init__(self, weights: nn.Weights, shape: nn.StateShape) -> None:
        super().__init__(weights, shape)
        self.both = nn.Linear(weights, "ssm_ba", shape.width, 2 * shape.heads)

    def controls(self, ctx: Context, x: Tensor) -> tuple[Tensor, Tensor]:
        s, each = self.shape, self.shape.heads // self.shape.groups
        both = self.both(ctx, x).reshape(ctx, 2 * each, s.groups, -1)
        share, decay = (t.contiguous(ctx, s.heads, -1) for t in both.chunk(ctx, 0, each))
        return decay, share

    def for_value_heads(self, ctx: Context, x: Tensor) -> Tensor:
        s, each = self.shape, (x.dim(2), x.dim(3))
        apart = x.reshape(ctx, s.states, 1, s.groups, -1)
        repeated = apart.repeat_4d(ctx, s.states, s.heads // s.groups, s.groups, apart.dim(3))
        return repeated.reshape(ctx, s.states, s.heads, *each)


@final
class TiledDeltaNet(nn.DeltaNet):
    """Value heads take the key heads in turn."""

    def __init__(self, weights: nn.Weights, shape: nn.StateShape) -> None:
        super().__init__(weights, shape)
        self.alpha = nn.Linear(weights, "ssm_alpha", shape.width, shape.heads)
        self.beta = nn.Linear(weights, "ssm_beta", shape.width, shape.heads)

    def controls(self, ctx: Context, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.alpha(ctx, x), self.beta(ctx, x)

    def for_value_heads(self, ctx: Context, x: Tensor) -> Tensor:
        return x.repeat_4d(ctx, x.dim(0), self.shape.heads, x.dim(2), x.dim(3))


@final
class GatedAttention:
    """Attention whose query has a gate beside it, for the head's result."""

    def __init__(self, weights: nn.Weights, shape: nn.Shape, rope: nn.Rope) -> None:
        self.shape, self.rope = shape, rope
        self.query = nn.Linear(weights, "attn_q", shape.width, 2 * shape.head * shape.heads)
        self.key = nn.Linear(weights, "attn_k", shape.width, shape.head * shape.kv_heads)
        self.value = nn.Linear(weights, "attn_v", shape.width, shape.value_head * shape.kv_heads)
        self.query_norm = nn.RMSNorm(weights, "attn_q_norm", shape.head)
        self.key_norm = nn.RMSNorm(weights, "attn_k_norm", shape.head)
        self.output = nn.Linear(weights, "attn_output", shape.value_head * shape.heads, shape.width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        s, tokens = self.shape, x.dim(1)
        both = self.query(ctx, x).reshape(ctx, 2 * s.head, s.heads, tokens)
        q, gate = (t.contiguous(ctx) for t in both.chunk(ctx, 0, s.head))
        k = self.key(ctx, x).reshape(ctx, s.head, s.kv_heads, tokens)
        v = self.value(ctx, x).reshape(ctx, s.value_head, s.kv_heads, tokens)
        positions = self.rope.positions(batch)
        q = self.rope(ctx, self.query_norm(ctx, q), positions)
        k = self.rope(ctx, self.key_norm(ctx, k), positions)
        a = nn.attend(ctx, layer, q, k, v, batch.cache, s.head**-0.5)
        a = a.mul(ctx, gate.sigmoid(ctx)).reshape(ctx, s.value_head * s.heads, tokens)
        return self.output(ctx, batch.select(ctx, a) if last else a)


class QwenNext(HybridDecoder):
    """Qwen3-Next: a gated delta rule, and gated attention in every fourth block.

    The value heads of one key head are neighbours.
    """

    net: type[nn.DeltaNet] = GroupedDeltaNet

    def recurs(self, layer: int) -> bool:
        if layer >= nn.block_count(self.config):  # predicts further tokens
            return False
        attends = (layer + 1) % INTERVAL.of(self.config, 4) == 0
        return bool(RECURRENT.of(self.config, not attends, layer=layer))

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, config = weights.at(f"blk.{layer}."), self.config
        mixer: nn.DeltaNet | GatedAttention
        if self.recurs(layer):
            mixer = self.net(here, nn.StateShape.of(config))
        else:
            shape = nn.Shape.of(config, layer, feeds=False)
            mixer = GatedAttention(here, shape, self.rope(shape, layer))
        return nn.build_block(here, mixer, nn.feed_forward_of(here, layer), second="post_attention_norm")

    def rope(self, shape: nn.Shape, layer: int) -> nn.Rope:
        return nn.Rope(self.config, shape, "neox")


@final
class Qwen35(QwenNext):
    """Qwen 3.5, a Qwen3-Next whose value heads take the key heads in turn, and whose rotary pairs the axes of positions."""

    net = TiledDeltaNet

    def __init__(self, backend: Backend) -> None:
        self.constants = backend.new_context()
        super().__init__(backend)

    def rope(self, shape: nn.Shape, layer: int) -> nn.Rope:
        sections, in_turn = interleaved_sections(self.config), self.constants.layer(layer)
        return nn.Rope(self.config, shape, "neox", sections=sections, in_turn=in_turn)
