"""The parts of recurrent blocks: states in the cache, convolutions, state-space models, the delta rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self, final

from backbay import BackbayError, Context, Tensor
from backbay.gguf import Config

from ...cache import BoundLayeredCache, BoundRecurrentCache
from ..batch import Batch
from ..keys import CONVOLUTION_TAPS, STATE_GROUPS, STATE_HEADS, STATE_INNER, STATE_SIZE, WIDTH
from .linear import Linear
from .norm import RMSNorm, rms_epsilon
from .weights import FLOATS, Weights


def states_of(batch: Batch, layer: int) -> BoundRecurrentCache:
    """The states of the step's sequences in a layer."""
    cache = batch.cache
    held = cache.of(layer) if isinstance(cache, BoundLayeredCache) else cache
    if not isinstance(held, BoundRecurrentCache):
        raise BackbayError(
            "this model keeps a state of earlier tokens: its steps need the cache of new_cache()"
        )
    return held


def split_heads(ctx: Context, x: Tensor, first: int, size: int, heads: int) -> Tensor:
    """A view of some channels of (channels, tokens, sequences), from the first on: (size, heads, tokens, sequences)."""
    unit = x.stride(0)
    shape = (size, heads, x.dim(1), x.dim(2))
    return x.view(ctx, first * unit, shape, (size * unit, x.stride(1), x.stride(2)))


@final
class CausalConvolution:
    """A convolution of each channel over a token and the `taps` - 1 tokens before it, plus a bias if the file has one."""

    def __init__(self, weights: Weights, name: str, taps: int, channels: int) -> None:
        self.taps = taps
        self.weight = weights.need(f"{name}.weight", taps, channels, dtypes=FLOATS)
        self.bias = weights.maybe(f"{name}.bias", channels)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch) -> Tensor:
        """(channels, tokens) to (channels, tokens of each sequence, sequences)"""
        window = states_of(batch, layer).convolved(ctx, layer, x, self.taps)
        y = window.ssm_conv(ctx, self.weight)
        return y if self.bias is None else y.add(ctx, self.bias)


@dataclass(frozen=True)
class StateShape:
    """The dimensions of a recurrent mixer, by the keys of llama.cpp."""

    width: int
    inner: int  # elements of all heads
    heads: int
    groups: int  # of heads that share B and C, or keys
    states: int
    taps: int  # of the convolution

    @classmethod
    def of(cls, config: Config) -> Self:
        inner, heads, groups = STATE_INNER.of(config), STATE_HEADS.of(config), STATE_GROUPS.of(config, 1)
        if inner % heads:
            raise STATE_HEADS.refuse(config, f"a divisor of the {inner} elements of ssm.inner_size")
        if heads % groups:
            raise STATE_GROUPS.refuse(config, f"a divisor of the {heads} heads")
        return cls(WIDTH.of(config), inner, heads, groups, STATE_SIZE.of(config), CONVOLUTION_TAPS.of(config))

    @property
    def head(self) -> int:
        """The elements of a head."""
        return self.inner // self.heads


@final
class Mamba2:
    """The mixer of Mamba 2: a convolution, a selective scan with one decay for each head, and a gate."""

    rope = None

    def __init__(self, weights: Weights, shape: StateShape) -> None:
        s = self.shape = shape
        self.channels = s.inner + 2 * s.groups * s.states  # x, B and C
        self.enter = Linear(weights, "ssm_in", s.width, s.inner + self.channels + s.heads)
        self.convolution = CausalConvolution(weights, "ssm_conv1d", s.taps, self.channels)
        self.step = weights.need("ssm_dt.bias", s.heads)
        self.decay = weights.need("ssm_a", 1, s.heads, dtypes=FLOATS)
        self.skip = weights.need("ssm_d", 1, s.heads, dtypes=FLOATS)
        self.norm = weights.maybe("ssm_norm.weight", s.inner // s.groups, s.groups, dtypes=FLOATS)
        self.eps = rms_epsilon(weights.config)
        self.leave = Linear(weights, "ssm_out", s.inner, s.width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        """(width, tokens); with `last`, only the outputs, (width, outputs)."""
        s = self.shape
        gate, mixed, step = self.enter(ctx, x).chunk_sections(ctx, 0, s.inner, self.channels, s.heads)
        mixed = self.convolution(ctx, layer, mixed, batch).silu(ctx)
        y = self.scan(ctx, layer, mixed, step, batch)  # (inner, tokens)
        y = gate.silu(ctx, y)
        if self.norm is not None:
            grouped = y.reshape(ctx, s.inner // s.groups, s.groups, -1).rms_norm(ctx, eps=self.eps)
            y = grouped.mul(ctx, self.norm).reshape(ctx, s.inner, -1)
        return self.leave(ctx, batch.select(ctx, y) if last else y)

    def scan(self, ctx: Context, layer: int, mixed: Tensor, step: Tensor, batch: Batch) -> Tensor:
        """x, B and C, (channels, tokens, sequences), and the steps to (inner, tokens of all sequences)."""
        s, held = self.shape, states_of(batch, layer)
        each, wide = (held.tokens, held.sequences), s.groups * s.states
        x = split_heads(ctx, mixed, 0, s.head, s.heads)
        into, out = (
            split_heads(ctx, mixed, first, s.states, s.groups) for first in (s.inner, s.inner + wide)
        )
        step = step.add(ctx, self.step).reshape(ctx, s.heads, *each)
        before, rows = held.all_states(ctx, layer, "ssm", s.states, s.head, s.heads)
        both = before.ssm_scan(ctx, x, step, self.decay, into, out, rows)
        y = both.view(ctx, 0, (s.head, s.heads, *each))
        after = both.view(ctx, x.size * both.stride(0), (s.states, s.head, s.heads, held.sequences))
        held.keep(ctx, layer, "ssm", after)
        return y.add(ctx, x.mul(ctx, self.skip)).reshape(ctx, s.inner, -1)


def delta_rule(
    ctx: Context,
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    share: Tensor,
    removed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The outputs of the tokens, and the states after them: the parts of the op's result, in the shapes of v and state."""
    both = state.delta_rule(ctx, q, k, v, decay, share, removed)
    return both.view(ctx, 0, v.shape), both.view(ctx, v.size * both.stride(0), state.shape)


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
        q, k = (split_heads(ctx, mixed, first, s.states, s.groups) for first in (0, keys))
        q, k = (t.l2_norm(ctx, eps=self.eps) for t in (q, k))
        if s.heads > s.groups:
            q, k = (self.for_value_heads(ctx, t) for t in (q, k))
        v = split_heads(ctx, mixed, 2 * keys, s.head, s.heads)
        decay, share = self.controls(ctx, x)
        decay = decay.add(ctx, self.step).softplus(ctx).mul(ctx, self.decay).reshape(ctx, 1, s.heads, *each)
        share = share.sigmoid(ctx).reshape(ctx, 1, s.heads, *each)
        before = held.state(ctx, layer, "delta", s.states, s.head, s.heads)
        y, after = delta_rule(ctx, before, q.scale(ctx, s.states**-0.5), k, v, decay, share)
        held.keep(ctx, layer, "delta", after)
        y = self.norm(ctx, y).reshape(ctx, s.inner, -1)
        y = self.gate(ctx, x).silu(ctx, y)
        return self.leave(ctx, batch.select(ctx, y) if last else y)
