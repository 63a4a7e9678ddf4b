"""The mixer of gated delta nets."""

from __future__ import annotations

from abc import ABC, abstractmethod

from backbay import Context, Tensor

from ...batch import Batch
from ..linear import Linear
from ..norm import RMSNorm, rms_epsilon
from ..weights import Weights
from .convolution import CausalConvolution, heads_of, states_of
from .delta_rule import delta_rule
from .mamba import StateShape


class DeltaNet(ABC):
    """A convolution, the gated delta rule, and a norm with a gate. Several value heads share a key head."""

    rope = None

    def __init__(self, weights: Weights, shape: StateShape) -> None:
        s = self.shape = shape
        self.channels = 2 * s.groups * s.states + s.inner  # of q, k and v
        self.enter = Linear(weights, "attn_qkv", s.width, self.channels)
        self.gate = Linear(weights, "attn_gate", s.width, s.inner)
        self.convolution = CausalConvolution(weights, "ssm_conv1d", s.taps, self.channels)
        self.step = weights.need("ssm_dt.bias", s.heads)
        self.decay = weights.need("ssm_a", s.heads)
        self.norm = RMSNorm(weights, "ssm_norm", s.head)
        self.leave = Linear(weights, "ssm_out", s.inner, s.width)
        self.eps = rms_epsilon(weights.config)

    @abstractmethod
    def controls(self, ctx: Context, x: Tensor) -> tuple[Tensor, Tensor]:
        """What decides on the decay and on the share of the change, (heads, tokens) each."""

    @abstractmethod
    def for_value_heads(self, ctx: Context, x: Tensor) -> Tensor:
        """(states, groups, tokens, sequences) to (states, heads, tokens, sequences): keys or queries of each value head."""

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        s, held = self.shape, states_of(batch, layer)
        each, keys = (held.tokens, held.sequences), s.groups * s.states
        mixed = self.convolution(ctx, layer, self.enter(ctx, x), batch).silu(ctx)
        q, k = (heads_of(ctx, mixed, first, s.states, s.groups) for first in (0, keys))
        q, k = (t.l2_norm(ctx, eps=self.eps) for t in (q, k))
        if s.heads > s.groups:
            q, k = (self.for_value_heads(ctx, t) for t in (q, k))
        v = heads_of(ctx, mixed, 2 * keys, s.head, s.heads)
        decay, share = self.controls(ctx, x)
        decay = decay.add(ctx, self.step).softplus(ctx).mul(ctx, self.decay).reshape(ctx, 1, s.heads, *each)
        share = share.sigmoid(ctx).reshape(ctx, 1, s.heads, *each)
        before = held.state(ctx, layer, "delta", s.states, s.head, s.heads)
        y, after = delta_rule(ctx, before, q.scale(ctx, s.states**-0.5), k, v, decay, share)
        held.keep(ctx, layer, "delta", after)
        y = self.norm(ctx, y).reshape(ctx, s.inner, -1)
        y = self.gate(ctx, x).silu(ctx, y)
        return self.leave(ctx, batch.select(ctx, y) if last else y)
