"""Mamba, Falcon Mamba, Mamba 2 and Nemotron-H: blocks of a single part each, most of which keep states."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor
from backbay.gguf import flag, whole

from ... import nn
from ...bases import HybridDecoder
from ...batch import Batch
from ...keys import CONVOLUTION_TAPS, STATE_HEADS, STATE_INNER, STATE_SIZE
from ...nn.norm import rms_epsilon
from ...nn.weights import FLOATS

HIDDEN = whole("feed_forward_length")  # of Nemotron-H; 0: the block has no feed-forward
NORMED = flag("ssm.dt_b_c_rms")  # of Falcon Mamba: what controls the scan is normed


@final
class MambaBlock:
    """x + mixer(norm(x)): a convolution, a selective scan with decays for each state of each channel, and a gate."""

    rope = None

    def __init__(self, weights: nn.Weights, width: int) -> None:
        config = weights.config
        self.inner, self.states = STATE_INNER.of(config), STATE_SIZE.of(config)
        self.rank = STATE_HEADS.of(config)  # of the steps
        self.eps = rms_epsilon(config) if NORMED.of(config, False) else None
        self.norm = nn.RMSNorm(weights, "attn_norm", width)
        self.enter = nn.Linear(weights, "ssm_in", width, 2 * self.inner)
        self.convolution = nn.CausalConvolution(
            weights, "ssm_conv1d", CONVOLUTION_TAPS.of(config), self.inner
        )
        self.controls = nn.Linear(weights, "ssm_x", self.inner, self.rank + 2 * self.states)
        self.step = nn.Linear(weights, "ssm_dt", self.rank, self.inner)
        self.decay = weights.need("ssm_a", self.states, self.inner, dtypes=FLOATS)
        self.skip = weights.need("ssm_d", self.inner)
        self.leave = nn.Linear(weights, "ssm_out", self.inner, width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        mixed, gate = self.enter(ctx, self.norm(ctx, x)).chunk(ctx, 0, self.inner)
        mixed = self.convolution(ctx, layer, mixed, batch).silu(ctx).reshape(ctx, self.inner, -1)
        y = self.scan(ctx, layer, mixed, batch).add(ctx, mixed.mul(ctx, self.skip))
        y = gate.silu(ctx, y)
        x, y = (batch.select(ctx, t) if last else t for t in (x, y))
        return x.add(ctx, self.leave(ctx, y))

    def scan(self, ctx: Context, layer: int, x: Tensor, batch: Batch) -> Tensor:
        """(inner, tokens of all sequences); every channel is a head of one element."""
        held, inner, states = nn.states_of(batch, layer), self.inner, self.states
        each = (held.tokens, held.sequences)
        parts = self.controls(ctx, x).chunk_sections(ctx, 0, self.rank, states, states)
        step, into, out = (part.contiguous(ctx) for part in parts)
        if self.eps is not None:
            step, into, out = (part.rms_norm(ctx, eps=self.eps) for part in (step, into, out))
        step = self.step(ctx, step).reshape(ctx, inner, *each)
        into, out = (part.reshape(ctx, states, 1, *each) for part in (into, out))
        before, rows = held.all_states(ctx, layer, "ssm", states, 1, inner)
        both = before.ssm_scan(ctx, x.reshape(ctx, 1, inner, *each), step, self.decay, into, out, rows)
        after = both.view(ctx, x.size * both.stride(0), (states, 1, inner, held.sequences))
        held.keep(ctx, layer, "ssm", after)
        return both.view(ctx, 0, (inner, x.dim(1)))


@final
class Mamba(HybridDecoder):
    """Mamba and Falcon Mamba."""

    def block(self, weights: nn.Weights, layer: int) -> MambaBlock:
        return MambaBlock(weights.at(f"blk.{layer}."), self.width)


@final
class Mamba2Block:
    """x + mixer(norm(x))"""

    rope = None

    def __init__(self, weights: nn.Weights, shape: nn.StateShape) -> None:
        self.norm = nn.RMSNorm(weights, "attn_norm", shape.width)
        self.mixer = nn.Mamba2(weights, shape)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        y = self.mixer(ctx, layer, self.norm(ctx, x), batch, last=last)
        return y.add(ctx, batch.select(ctx, x) if last else x)


@final
class Mamba2(HybridDecoder):
    """Mamba 2."""

    def block(self, weights: nn.Weights, layer: int) -> Mamba2Block:
        return Mamba2Block(weights.at(f"blk.{layer}."), nn.StateShape.of(self.config))


@final
class NemotronHBlock:
    """x + part(norm(x))"""

    rope: nn.Rope | None = None  # the model knows no positions

    def __init__(self, weights: nn.Weights, width: int, part: nn.Mixer | nn.FeedForward | nn.Experts) -> None:
        self.norm, self.part = nn.RMSNorm(weights, "attn_norm", width), part

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        h = self.norm(ctx, x)
        x = batch.select(ctx, x) if last else x
        if isinstance(self.part, nn.FeedForward | nn.Experts):
            return x.add(ctx, self.part(ctx, batch.select(ctx, h) if last else h))
        return x.add(ctx, self.part(ctx, layer, h, batch, last=last))


@final
class NemotronH(HybridDecoder):
    """Nemotron-H, dense and with experts: each block is a Mamba 2, an attention or a feed-forward, without gates."""

    def recurs(self, layer: int) -> bool:
        return not nn.attends(self.config, layer) and not self.feeds(layer)

    def feeds(self, layer: int) -> bool:
        return HIDDEN.of(self.config, layer=layer) > 0

    def block(self, weights: nn.Weights, layer: int) -> NemotronHBlock:
        here, config = weights.at(f"blk.{layer}."), self.config
        part: nn.Mixer | nn.FeedForward | nn.Experts
        if self.recurs(layer):
            part = nn.Mamba2(here, nn.StateShape.of(config))
        elif not self.feeds(layer):
            part = nn.Attention(here, nn.Shape.of(config, layer, plain=True, feeds=False), None)
        else:
            shape = nn.Shape.of(config, layer, attends=False)
            if shape.experts:
                routing = nn.Routing.of(config, shape, gating=nn.Gating.SIGMOID)
                part = nn.Experts(here, shape, nn.ACTIVATIONS["relu_sqr"], routing=routing, gated=False)
            else:
                part = nn.FeedForward(here, shape, "relu_sqr")
        return NemotronHBlock(here, self.width, part)
