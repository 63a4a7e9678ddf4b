"""Latent attention on a backend, over prompts that are cut anywhere: its two forms against the formula."""

from __future__ import annotations

from typing import final

import numpy as np

from backbay import Context, DType, Tensor
from backbay_conformance.plugin import Draw, Lab, scenario

from ..cache import BoundCache, CacheSizes, CausalCache
from ..models.nn.latent import LatentParts, attend_absorbed, attend_plain
from ..steps.builders import next_step
from .closeness import Array, leaf_of, require_near, roundoff

SEQUENCES, STEPS, CAPACITY = 3, 5, 256
COUNTS = (1, 1, 2, 7, 16, 33)  # tokens of each sequence in a step
LEFT = 300  # roundoffs of a result, relative to the largest


@final
class Sizes:
    """Random sizes of a layer, and its weights."""

    def __init__(self, draw: Draw) -> None:
        self.heads, self.latent = 1 + draw.below(4), 4 * (1 + draw.below(6))
        self.fixed, self.rotated, self.value = (4 * (1 + draw.below(4)) for _ in range(3))
        rng = np.random.default_rng(draw.below(1 << 30))
        self.keys = _drawn(rng, self.heads, self.fixed, self.latent) / self.latent**0.5
        self.values = _drawn(rng, self.heads, self.value, self.latent) / self.latent**0.5
        self.scale = (self.fixed + self.rotated) ** -0.5

    def inputs(self, rng: np.random.Generator, tokens: int) -> list[Array]:
        """The parts of LatentParts, reversed."""
        lead = (tokens, self.heads)
        queries = _drawn(rng, *lead, self.fixed), _drawn(rng, *lead, self.rotated)
        return [*queries, _drawn(rng, tokens, self.latent), _drawn(rng, tokens, 1, self.rotated)]

    def attend(self, fixed: Array, turned: Array, latent: Array, key: Array) -> Array:
        """The result of one token, (heads, value), over all tokens so far, in float64."""
        own = np.einsum("hfl,tl->thf", self.keys, latent)
        scores = np.einsum("hf,thf->ht", fixed, own) + np.einsum("hr,tr->ht", turned, key[:, 0])
        odds = np.exp((scores - scores.max(1, keepdims=True)) * self.scale)
        odds /= odds.sum(1, keepdims=True)
        result: Array = np.einsum("ht,hvl,tl->hv", odds, self.values, latent)
        return result


def _drawn(rng: np.random.Generator, *shape: int) -> Array:
    """Numbers that f32 holds."""
    numbers: Array = rng.standard_normal(shape).astype(np.float32).astype(np.float64)
    return numbers


def _trace(ctx: Context, sizes: Sizes, parts: LatentParts, bound: BoundCache, *, absorbed: bool) -> Tensor:
    if absorbed:
        keys, values = (leaf_of(ctx, each) for each in (sizes.keys.transpose(0, 2, 1), sizes.values))
        return attend_absorbed(ctx, 0, parts, keys, values, bound, sizes.scale)
    joint = np.concatenate([sizes.keys, sizes.values], axis=1).reshape(-1, sizes.latent)
    both = leaf_of(ctx, joint).mulmat(ctx, parts.latent)
    both = both.reshape(ctx, sizes.fixed + sizes.value, sizes.heads, parts.latent.dim(1))
    return attend_plain(ctx, 0, parts, both, bound, sizes.scale)


@scenario("cache", smoke=3, default=20, nightly=200)
def engine_latent_attention(lab: Lab, draw: Draw) -> None:
    """Latent attention: the absorbed form and the plain one are the formula, over prompts that are cut anywhere."""
    backend, sizes = lab.backend, Sizes(draw)
    dtypes = backend.cache_config().dtypes
    dtype = DType.F32 if DType.F32 in dtypes else dtypes[0]
    caches = {absorbed: CausalCache(None) for absorbed in (True, False)}
    ends, held = [0] * SEQUENCES, [list[list[Array]]() for _ in range(SEQUENCES)]
    try:
        for cache in caches.values():
            cache.open(backend, CacheSizes(SEQUENCES, CAPACITY, CAPACITY, dtype))
        for _ in range(STEPS):
            chosen = sorted({draw.below(SEQUENCES) for _ in range(2)})
            count = COUNTS[draw.below(len(COUNTS))]
            step = next_step(ends, [n for n in chosen for _ in range(count)])
            inputs = sizes.inputs(np.random.default_rng(draw.below(1 << 30)), step.size)
            expected = np.array(
                [
                    _expected(sizes, held[n], [part[t] for part in inputs])
                    for t, n in enumerate(step.sequences)
                ]
            )
            draw.note(f"{count} tokens of {chosen} at {[ends[n] for n in chosen]}")
            for absorbed, cache in caches.items():
                with backend.new_context() as ctx:
                    bound = cache.bind(ctx, cache.plan(step))
                    parts = LatentParts(*(leaf_of(ctx, part) for part in inputs))
                    y = _trace(ctx, sizes, parts, bound, absorbed=absorbed)
                    ctx.forward(y).compute(y)
                    found = y.floats().reshape(expected.shape)
                form = "absorbed" if absorbed else "plain"
                require_near(found, expected, LEFT * roundoff(backend, dtype), form)
            for n in chosen:
                ends[n] += count
    finally:
        for cache in caches.values():
            if cache.is_open:
                cache.close()


def _expected(sizes: Sizes, held: list[list[Array]], token: list[Array]) -> Array:
    """The result of a sequence's next token; its latent vector and key are held from now on."""
    fixed, turned, latent, key = token
    held.append([latent, key])
    latents, keys = (np.array([each[i] for each in held]) for i in (0, 1))
    return sizes.attend(fixed, turned, latents, keys)
