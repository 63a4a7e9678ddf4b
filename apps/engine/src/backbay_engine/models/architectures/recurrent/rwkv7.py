"""RWKV 7: a delta rule with a decay for each channel, and mixes of each token with the one before."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor
from backbay.gguf import whole

from ... import nn
from ...bases import HybridDecoder
from ...batch import Batch
from ...nn.weights import FLOATS

HEAD = whole("wkv.head_size", 1)
GROUP_EPSILON = 64e-5
SLOWEST = -0.606531  # -exp(-0.5): the decays of a token are between this and 0
FIRST_VALUES = "blk.0.values"


@final
class LowRankProjection:
    """base + second(activation(first(x))), of low rank; the file decides on the rank, and on the base."""

    def __init__(self, weights: nn.Weights, letter: str, width: int) -> None:
        rank = weights.extent(f"time_mix_{letter}1.weight", 1)
        self.base = weights.maybe(f"time_mix_{letter}0.weight", width)
        self.first = nn.Linear(weights, f"time_mix_{letter}1", width, rank)
        self.second = nn.Linear(weights, f"time_mix_{letter}2", rank or 1, width)

    def __call__(self, ctx: Context, x: Tensor, activation: nn.Module | None = None) -> Tensor:
        h = self.first(ctx, x)
        y = self.second(ctx, h if activation is None else activation(ctx, h))
        return y if self.base is None else y.add(ctx, self.base)


def previous_tokens(ctx: Context, layer: int, x: Tensor, batch: Batch, name: str) -> Tensor:
    """The token before each token, (width, tokens)."""
    held = nn.states_of(batch, layer)
    width, tokens = x.dim(0), held.tokens
    last = held.state(ctx, layer, name, width, 1)
    x = x.reshape(ctx, width, tokens, held.sequences)
    held.keep(ctx, layer, name, x.slice(ctx, 1, tokens - 1, tokens))
    if tokens > 1:
        last = last.concat(ctx, x.slice(ctx, 1, 0, tokens - 1), 1)
    return last.reshape(ctx, width, -1)


@final
class TimeMix:
    """What a token needs of all earlier ones."""

    def __init__(self, weights: nn.Weights, width: int, head: int, layer: int) -> None:
        self.width, self.head, self.heads = width, head, width // head
        self.mixes = weights.need("time_mix_lerp_fused.weight", width, 1, 1, 6, dtypes=FLOATS)
        self.query, self.key, self.value, self.output = (
            nn.Linear(weights, f"time_mix_{name}", width, width)
            for name in ("receptance", "key", "value", "output")
        )
        self.decay, self.rate, self.blend, self.gate = (
            LowRankProjection(weights, letter, width) for letter in "wavg"
        )  # the first block has a blend that it does not use
        self.removal, self.growth, self.bonus = (
            weights.need(f"time_mix_{name}.weight", width) for name in ("k_k", "k_a", "r_k")
        )
        self.norm = weights.need("time_mix_ln.weight", width), weights.need("time_mix_ln.bias", width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch) -> Tensor:
        held, shape = nn.states_of(batch, layer), (self.head, self.heads, -1)
        change = previous_tokens(ctx, layer, x, batch, "time").sub(ctx, x)
        mixed = change.repeat_4d(ctx, self.width, x.dim(1), 1, 6).mul(ctx, self.mixes).add(ctx, x)
        r, w, k, v, a, g = (mixed.slice(ctx, 3, n, n + 1).reshape(ctx, self.width, -1) for n in range(6))
        values = self.values(ctx, layer, v, batch)
        rate = self.rate(ctx, a).sigmoid(ctx)
        k = self.key(ctx, k)
        removed = k.mul(ctx, self.removal).reshape(ctx, *shape).l2_norm(ctx, eps=1e-12)
        grown = k.mul(ctx, self.growth)
        k = k.add(ctx, grown.mul(ctx, rate).sub(ctx, grown))
        query = self.query(ctx, r)
        decay = self.decay(ctx, w, lambda ctx, h: h.tanh(ctx)).sigmoid(ctx).scale(ctx, SLOWEST)
        vectors = (
            t.reshape(ctx, self.head, self.heads, held.tokens, held.sequences)
            for t in (query, k, values, decay, rate, removed)
        )
        state = held.state(ctx, layer, "wkv", self.head, self.head, self.heads)
        y, state = nn.delta_rule(ctx, state, *vectors)
        held.keep(ctx, layer, "wkv", state)
        y = y.reshape(ctx, *shape).layer_norm(ctx, eps=GROUP_EPSILON).reshape(ctx, self.width, -1)
        y = y.mul(ctx, self.norm[0]).add(ctx, self.norm[1])
        same = query.mul(ctx, k).mul(ctx, self.bonus).reshape(ctx, *shape).sum_rows(ctx)
        y = y.add(ctx, values.reshape(ctx, *shape).mul(ctx, same).reshape(ctx, self.width, -1))
        gate = self.gate(ctx, g, lambda ctx, h: h.sigmoid(ctx))
        return self.output(ctx, y.mul(ctx, gate))

    def values(self, ctx: Context, layer: int, x: Tensor, batch: Batch) -> Tensor:
        """The values; those of later blocks are blended with those of the first."""
        values = self.value(ctx, x)
        if layer == 0:
            return batch.tap(FIRST_VALUES, values)
        change = batch.taps[FIRST_VALUES].sub(ctx, values)
        return values.add(ctx, change.mul(ctx, self.blend(ctx, x).sigmoid(ctx)))


@final
class Rwkv7Block:
    """A time mix and a feed-forward, which also sees the token before."""

    rope = None

    def __init__(self, weights: nn.Weights, width: int, hidden: int, head: int, layer: int) -> None:
        self.time_norm = nn.LayerNorm(weights, "attn_norm", width)
        self.time = TimeMix(weights, width, head, layer)
        self.channel_norm = nn.LayerNorm(weights, "attn_norm_2", width)
        self.mix = weights.need("channel_mix_lerp_k.weight", width, dtypes=FLOATS)
        self.up = nn.Linear(weights, "channel_mix_key", width, hidden)
        self.down = nn.Linear(weights, "channel_mix_value", hidden, width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        x = x.add(ctx, self.time(ctx, layer, self.time_norm(ctx, x), batch))
        h = self.channel_norm(ctx, x)
        h = h.add(ctx, previous_tokens(ctx, layer, h, batch, "channel").sub(ctx, h).mul(ctx, self.mix))
        x, h = (batch.select(ctx, t) if last else t for t in (x, h))
        return x.add(ctx, self.down(ctx, self.up(ctx, h).relu(ctx).sqr(ctx)))


@final
class Rwkv7(HybridDecoder):
    """Layer norms, one of them after the embedding."""

    def block(self, weights: nn.Weights, layer: int) -> Rwkv7Block:
        head = HEAD.of(self.config)
        if self.width % head:
            raise HEAD.refuse(self.config, f"a divisor of the width, {self.width},")
        hidden = nn.Shape.of(self.config, layer, attends=False).hidden
        return Rwkv7Block(weights.at(f"blk.{layer}."), self.width, hidden, head, layer)

    def final_norm(self, weights: nn.Weights) -> nn.Module:
        return nn.LayerNorm(weights, "output_norm", self.width)

    def declare(self, weights: nn.Weights) -> None:
        self.embedding_norm = nn.LayerNorm(weights, "token_embd_norm", self.width)

    def begin(self, ctx: Context, x: Tensor, batch: Batch) -> Tensor:
        return self.embedding_norm(ctx, x)
