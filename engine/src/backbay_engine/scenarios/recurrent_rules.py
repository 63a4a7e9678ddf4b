"""The rules of recurrent models on a backend: prompts in chunks, cut anywhere, against the rule token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from backbay import Context, Tensor, ops
from backbay_conformance.plugin import Draw, Lab, scenario

from ..cache import BoundRecurrentCache, RecurrentCache
from .cut_prompts import Array, Rule, cut_prompts


class StateRule(Rule[BoundRecurrentCache]):
    """A rule whose states are in a recurrent cache."""

    check = "state"
    roundoffs = 4000  # a state carries the errors of many tokens

    def __init__(self, draw: Draw) -> None:
        self.heads, self.key, self.value = 1 + draw.below(3), 4 * (1 + draw.below(3)), 1 + draw.below(9)
        self.state = self.heads, self.value, self.key

    def new_cache(self) -> RecurrentCache:
        return RecurrentCache(checkpoints=2, interval=4)


class DeltaRule(StateRule):
    """A delta rule: by the backend's kernel, or by core's composite, which takes prompts in chunks."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.composed = draw.flag()

    def trace(self, ctx: Context, bound: BoundRecurrentCache, inputs: Sequence[Tensor]) -> Tensor:
        before, v = bound.state(ctx, 0, "delta", *self.state[::-1]), inputs[2]
        args = (before, *inputs, None)[:7]
        both = ops.delta_rule.open(ctx, args) if self.composed else before.delta_rule(ctx, *inputs)
        bound.keep(ctx, 0, "delta", both.view(ctx, v.size * both.stride(0), before.shape))
        return both.view(ctx, 0, v.shape).contiguous(ctx)


@final
class GatedRule(DeltaRule):
    def inputs(self, rng: np.random.Generator, sequences: int, tokens: int) -> list[Array]:
        lead = (sequences, tokens, self.heads)
        q, k = (rng.standard_normal((*lead, self.key)) for _ in range(2))
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        decay = -rng.exponential(10.0 ** rng.integers(-3, 2), (*lead, 1))
        return [q, k, rng.standard_normal((*lead, self.value)), decay, rng.random((*lead, 1))]

    def follow(self, state: Array, inputs: Sequence[Array]) -> tuple[Array, Array]:
        q, k, v, decay, share = inputs
        state = state * np.exp(decay)[:, None]
        change = (v - np.einsum("hvk,hk->hv", state, k)) * share
        state = state + change[:, :, None] * k[:, None]
        return np.einsum("hvk,hk->hv", state, q), state


@final
class LowRankRule(DeltaRule):
    """The rule of RWKV 7."""

    def inputs(self, rng: np.random.Generator, sequences: int, tokens: int) -> list[Array]:
        lead = (sequences, tokens, self.heads)
        query, key, removed = (rng.standard_normal((*lead, self.key)) for _ in range(3))
        removed /= np.linalg.norm(removed, axis=-1, keepdims=True)
        decay = -0.6065 * rng.random((*lead, self.key))
        value = rng.standard_normal((*lead, self.value))
        return [query, key, value, decay, rng.random((*lead, self.key)), removed]

    def follow(self, state: Array, inputs: Sequence[Array]) -> tuple[Array, Array]:
        query, key, value, decay, share, removed = inputs
        known = np.einsum("hvk,hk->hv", state, removed)
        state = state * np.exp(decay)[:, None] - known[:, :, None] * (share * removed)[:, None]
        state = state + value[:, :, None] * key[:, None]
        return np.einsum("hvk,hk->hv", state, query), state


@final
class StateSpace(StateRule):
    """The selective scan of Mamba 2; the states are read where they lie in the cache."""

    def inputs(self, rng: np.random.Generator, sequences: int, tokens: int) -> list[Array]:
        lead = (sequences, tokens)
        into, out = (rng.standard_normal((*lead, 1, self.key)) for _ in range(2))
        x = rng.standard_normal((*lead, self.heads, self.value))
        return [x, rng.standard_normal((*lead, self.heads)) * 2, into, out, self.decays()]

    def decays(self) -> Array:
        return -np.linspace(0.05, 3.0, self.heads)[:, None]

    def trace(self, ctx: Context, bound: BoundRecurrentCache, inputs: Sequence[Tensor]) -> Tensor:
        x, step, into, out, decays = inputs
        states, rows = bound.all_states(ctx, 0, "ssm", *self.state[::-1])
        both = states.ssm_scan(ctx, x, step, decays, into, out, rows)
        after = both.view(ctx, x.size * both.stride(0), (*self.state[::-1], x.dim(3)))
        bound.keep(ctx, 0, "ssm", after)
        return both.view(ctx, 0, x.shape).contiguous(ctx)

    def follow(self, state: Array, inputs: Sequence[Array]) -> tuple[Array, Array]:
        x, step, into, out = inputs
        step = np.log1p(np.exp(step))
        state = state * np.exp(step[:, None, None] * self.decays()[:, None])
        state = state + (x * step[:, None])[:, :, None] * into[0]
        return state @ out[0], state


@scenario("cache", smoke=3, default=20, nightly=200)
def engine_delta_rule(lab: Lab, draw: Draw) -> None:
    """The gated delta rule: chunks of prompts that are cut anywhere, and single tokens, agree."""
    cut_prompts(lab, draw, GatedRule(draw))


@scenario("cache", smoke=3, default=20, nightly=200)
def engine_low_rank_rule(lab: Lab, draw: Draw) -> None:
    """The rule of RWKV 7, with a decay for each channel: chunks and single tokens agree."""
    cut_prompts(lab, draw, LowRankRule(draw))


@scenario("cache", smoke=3, default=20, nightly=200)
def engine_state_space(lab: Lab, draw: Draw) -> None:
    """The selective scan over prompts that are cut anywhere, its states in the recurrent cache."""
    cut_prompts(lab, draw, StateSpace(draw))
