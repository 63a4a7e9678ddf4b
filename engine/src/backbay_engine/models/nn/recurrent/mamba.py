"""The mixers of state-space models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

from backbay import Context, Tensor
from backbay.gguf import Config

from ...batch import Batch
from ...keys import (
    CONVOLUTION_TAPS,
    STATE_GROUPS,
    STATE_HEADS,
    STATE_INNER,
    STATE_SIZE,
    WIDTH,
)
from ..linear import Linear
from ..norm import rms_epsilon
from ..weights import FLOATS, Weights
from .convolution import CausalConvolution, heads_of, states_of


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
        x = heads_of(ctx, mixed, 0, s.head, s.heads)
        into, out = (heads_of(ctx, mixed, first, s.states, s.groups) for first in (s.inner, s.inner + wide))
        step = step.add(ctx, self.step).reshape(ctx, s.heads, *each)
        before, rows = held.all_states(ctx, layer, "ssm", s.states, s.head, s.heads)
        both = before.ssm_scan(ctx, x, step, self.decay, into, out, rows)
        y = both.view(ctx, 0, (s.head, s.heads, *each))
        after = both.view(ctx, x.size * both.stride(0), (s.states, s.head, s.heads, held.sequences))
        held.keep(ctx, layer, "ssm", after)
        return y.add(ctx, x.mul(ctx, self.skip)).reshape(ctx, s.inner, -1)
