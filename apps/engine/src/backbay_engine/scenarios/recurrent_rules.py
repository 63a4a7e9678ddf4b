"""Layers of recurrent models and latent attention on a backend: prompts that are cut anywhere, against rules in float64."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, DType, Spec, Tensor, ops
from backbay_conformance.plugin import Draw, Fault, Lab, scenario

from ..cache import BoundCache, BoundRecurrentCache, Cache, CacheSizes, CausalCache, RecurrentCache
from ..cache.contract import ROUNDOFFS
from ..models.nn.latent import LatentOperands, attend_absorbed, attend_plain
from ..steps.step import next_step

Array: TypeAlias = NDArray[Any]
Bound = TypeVar("Bound", bound=BoundCache)
SEQUENCES, STEPS, CAPACITY = 3, 5, 1 << 10
COUNTS = (1, 1, 2, 5, 16, 33, 65, 70)  # tokens of each sequence in a step


class RecurrentRule(ABC, Generic[Bound]):
    """A rule with random sizes. Arrays are reversed: (sequences, tokens, heads, ..).

    state      the shape of a sequence's state before its first token
    roundoffs  by how many a result may be off, relative to the largest
    """

    check: str
    state: tuple[int, ...]
    roundoffs: int

    @abstractmethod
    def new_cache(self) -> Cache:
        """A cache for one layer."""

    @abstractmethod
    def inputs(self, rng: np.random.Generator, sequences: int, tokens: int) -> list[Array]:
        """The inputs of the tokens of a step."""

    @abstractmethod
    def trace(self, ctx: Context, bound: Bound, inputs: Sequence[Tensor]) -> Tensor:
        """The outputs, (value, heads, tokens, sequences); keeps the states."""

    @abstractmethod
    def follow(self, state: Array, inputs: Sequence[Array]) -> tuple[Array, Array]:
        """The output of one token of one sequence, (heads, value), and the state after it, in float64."""


def cut_prompts(lab: Lab, draw: Draw, rule: RecurrentRule[Any]) -> None:
    """Steps of one to three sequences, of one token or many, some of them shared or rolled back."""
    backend, cache = lab.backend, rule.new_cache()
    dtypes = backend.cache_config().dtypes
    dtype = DType.F32 if DType.F32 in dtypes else dtypes[0]
    cache.open(backend, CacheSizes(SEQUENCES, CAPACITY, CAPACITY, dtype))
    unit = rule.roundoffs * _roundoff(backend, DType.F32 if cache.is_uniform else dtype)  # states are f32
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
            _require_near(found, expected, unit, rule.check)
            for n in chosen:
                ends[n] += count
    finally:
        cache.close()


def _followed(
    rule: RecurrentRule[Any],
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


def leaf_of(ctx: Context, array: Array) -> Tensor:
    """An input with the array's numbers in f32; its shape is the array's, reversed."""
    return ctx.input().from_floats(np.ascontiguousarray(array, np.float32), *array.shape[::-1])


def _roundoff(backend: Backend, dtype: DType) -> float:
    """The coarsest roundoff of a product in f32, or of the cache's type."""
    declared = backend.precision(ops.mulmat, [Spec(DType.F32, (8, 8)), Spec(DType.F32, (8, 8))])
    kinds = (DType.F32, declared.activation, declared.accumulate, declared.weight, dtype)
    return max(ROUNDOFFS.get(kind, 0.0) for kind in kinds)


def _require_near(found: Array, expected: Array, unit: float, check: str) -> None:
    """Raise Fault unless each element is within `unit`, relative to the largest expected element or to 1."""
    bound = unit * max(1.0, float(np.abs(expected).max()))
    off = np.abs(found - expected)
    if not (off <= bound).all():
        at = tuple(map(int, np.unravel_index(np.nan_to_num(off, nan=np.inf).argmax(), off.shape)))
        raise Fault(
            check, f"at {at[::-1]} expected {expected[at]:.7g} within {bound:.3g}, got {found[at]:.7g}"
        )


# -- recurrent rules -------------------------------------------------------------------------------------------


class StateRule(RecurrentRule[BoundRecurrentCache]):
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
class GatedDeltaRule(DeltaRule):
    """The rule of Qwen 3 Next: a state decays, then a token takes what it holds for its key, and puts its value there."""

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
class Rwkv7Rule(DeltaRule):
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
class StateSpaceRule(StateRule):
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
    cut_prompts(lab, draw, GatedDeltaRule(draw))


@scenario("cache", smoke=3, default=20, nightly=200)
def engine_low_rank_rule(lab: Lab, draw: Draw) -> None:
    """The rule of RWKV 7, with a decay for each channel: chunks and single tokens agree."""
    cut_prompts(lab, draw, Rwkv7Rule(draw))


@scenario("cache", smoke=3, default=20, nightly=200)
def engine_state_space(lab: Lab, draw: Draw) -> None:
    """The selective scan over prompts that are cut anywhere, its states in the recurrent cache."""
    cut_prompts(lab, draw, StateSpaceRule(draw))


# -- latent attention ------------------------------------------------------------------------------------------


@final
class LatentAttentionRule(RecurrentRule[BoundCache]):
    """Attention over latent vectors. A sequence's state are the latent vectors and the keys of its tokens, side by side."""

    roundoffs = 300

    def __init__(self, draw: Draw, *, absorbed: bool) -> None:
        self.absorbed, self.check = absorbed, "absorbed" if absorbed else "plain"
        self.heads, self.latent = 1 + draw.below(4), 4 * (1 + draw.below(6))
        self.fixed, self.rotated, self.value = (4 * (1 + draw.below(4)) for _ in range(3))
        rng = np.random.default_rng(draw.below(1 << 30))
        self.keys = rng.standard_normal((self.heads, self.fixed, self.latent)) / self.latent**0.5
        self.values = rng.standard_normal((self.heads, self.value, self.latent)) / self.latent**0.5
        self.scale = (self.fixed + self.rotated) ** -0.5
        self.state = 0, self.latent + self.rotated

    def new_cache(self) -> CausalCache:
        return CausalCache(None)

    def inputs(self, rng: np.random.Generator, sequences: int, tokens: int) -> list[Array]:
        """The parts of LatentOperands, reversed."""
        shapes = (self.heads, self.fixed), (self.heads, self.rotated), (self.latent,), (1, self.rotated)
        return [rng.standard_normal((sequences, tokens, *shape)) for shape in shapes]

    def trace(self, ctx: Context, bound: BoundCache, inputs: Sequence[Tensor]) -> Tensor:
        tokens = inputs[0].dim(2) * inputs[0].dim(3)
        parts = LatentOperands(*(x.reshape(ctx, *x.shape[:-2], tokens) for x in inputs))
        if self.absorbed:
            keys, values = (leaf_of(ctx, each) for each in (self.keys.transpose(0, 2, 1), self.values))
            return attend_absorbed(ctx, 0, parts, keys, values, bound, self.scale)
        joint = np.concatenate([self.keys, self.values], axis=1).reshape(-1, self.latent)
        both = leaf_of(ctx, joint).mulmat(ctx, parts.latent)
        both = both.reshape(ctx, self.fixed + self.value, self.heads, tokens)
        return attend_plain(ctx, 0, parts, both, bound, self.scale)

    def follow(self, state: Array, inputs: Sequence[Array]) -> tuple[Array, Array]:
        fixed, turned, latent, key = inputs
        state = np.vstack([state, np.concatenate([latent, key[0]])])
        latents, keys = state[:, : self.latent], state[:, self.latent :]
        own = np.einsum("hfl,tl->thf", self.keys, latents)
        scores = np.einsum("hf,thf->ht", fixed, own) + np.einsum("hr,tr->ht", turned, keys)
        odds = np.exp((scores - scores.max(1, keepdims=True)) * self.scale)
        odds /= odds.sum(1, keepdims=True)
        return np.einsum("ht,hvl,tl->hv", odds, self.values, latents), state


@scenario("cache", smoke=3, default=20, nightly=200)
def engine_latent_attention(lab: Lab, draw: Draw) -> None:
    """Latent attention: the absorbed form and the plain one are the formula, over prompts that are cut anywhere."""
    for absorbed in (True, False):
        cut_prompts(lab, draw, LatentAttentionRule(draw, absorbed=absorbed))
