"""The rules of recurrent models on a backend: prompts in chunks, cut anywhere, against the rule token by token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import numpy as np

from backbay import Context, Tensor, ops
from backbay_conformance.plugin import Draw, Lab, scenario

from ..cache import BoundRecurrentCache, CacheSizes, RecurrentCache
from ..steps.builders import next_step
from .closeness import Array, leaf_of, require_near, roundoff

SEQUENCES, STEPS = 3, 5
COUNTS = (1, 1, 2, 5, 16, 33, 65, 70)  # tokens of each sequence in a step
LEFT = 4000  # roundoffs of a result, relative to the largest: a state carries the errors of many tokens


class Rule(ABC):
    """A rule with random sizes. Arrays are reversed: (sequences, tokens, heads, ..)."""

    def __init__(self, draw: Draw) -> None:
        self.heads, self.key, self.value = 1 + draw.below(3), 4 * (1 + draw.below(3)), 1 + draw.below(9)

    @property
    def state(self) -> tuple[int, ...]:
        """The shape of a sequence's state, reversed."""
        return self.heads, self.value, self.key

    @abstractmethod
    def inputs(self, rng: np.random.Generator, sequences: int, tokens: int) -> list[Array]:
        """What the tokens of a step give to the rule."""

    @abstractmethod
    def trace(self, ctx: Context, bound: BoundRecurrentCache, inputs: Sequence[Tensor]) -> Tensor:
        """The outputs, (value, heads, tokens, sequences); keeps the states."""

    @abstractmethod
    def follow(self, state: Array, inputs: Sequence[Array]) -> tuple[Array, Array]:
        """The output of one token of one sequence, (heads, value), and the state after it, in float64."""


class DeltaRule(Rule):
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
    """The gated delta rule."""

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
class StateSpace(Rule):
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


def cut_prompts(lab: Lab, draw: Draw, rule: Rule) -> None:
    """Steps of one to three sequences, of one token or many, some of them shared or rolled back."""
    backend, cache = lab.backend, RecurrentCache(checkpoints=2, interval=4)
    bound_of_product = LEFT * roundoff(backend)
    cache.open(backend, CacheSizes(SEQUENCES, 1 << 10, 1 << 10))
    known: list[dict[int, Array]] = [{0: np.zeros(rule.state)} for _ in range(SEQUENCES)]
    ends = [0] * SEQUENCES
    try:
        for _ in range(STEPS):
            source, target = draw.below(SEQUENCES), draw.below(SEQUENCES)
            if draw.below(3) == 0:
                ends[target] = cache.last_resumable(source, draw.below(1 + ends[source]))
                cache.copy_prefix(source, target, ends[target])
                known[target] = dict(known[source])
            count = COUNTS[draw.below(len(COUNTS))]
            chosen = sorted({draw.below(SEQUENCES) for _ in range(2)})
            step = next_step(ends, [n for n in chosen for _ in range(count)])
            if draw.below(4) == 0:
                cache.plan(step)
                cache.rollback(step)
            rng = np.random.default_rng(draw.below(1 << 30))
            inputs = rule.inputs(rng, len(chosen), count)
            expected = _followed(rule, known, ends, chosen, inputs)
            with backend.new_context() as ctx:
                bound = cache.bind(ctx, cache.plan(step))
                y = rule.trace(ctx, bound, [leaf_of(ctx, each) for each in inputs])
                ctx.forward(y).compute(y)
                found = y.floats().reshape(expected.shape)
            draw.note(f"{count} tokens of {chosen} at {[ends[n] for n in chosen]}")
            require_near(found, expected, bound_of_product, "state")
            for n in chosen:
                ends[n] += count
    finally:
        cache.close()


def _followed(
    rule: Rule,
    known: list[dict[int, Array]],
    ends: Sequence[int],
    chosen: Sequence[int],
    inputs: Sequence[Array],
) -> Array:
    """The outputs by the rule as it is written, (sequences, tokens, heads, value); notes the states."""
    outputs = []
    for row, n in enumerate(chosen):
        state = known[n][ends[n]]
        of_tokens = [each.astype(np.float32).astype(np.float64) for each in inputs if each.ndim > 2]
        for t in range(of_tokens[0].shape[1]):
            y, state = rule.follow(state, [each[row, t] for each in of_tokens])
            known[n][ends[n] + t + 1] = state
            outputs.append(y)
    return np.array(outputs).reshape(len(chosen), -1, *outputs[0].shape)


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
