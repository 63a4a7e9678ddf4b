"""Latent attention on a backend, over prompts that are cut anywhere: its two forms against the formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from backbay import Context, Tensor
from backbay_conformance.plugin import Draw, Lab, scenario

from ..cache import BoundCache, CausalCache
from ..models.nn import LatentParts, attend_absorbed, attend_plain
from .cut_prompts import Array, Rule, cut_prompts, leaf_of


@final
class Latent(Rule[BoundCache]):
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
        """The parts of LatentParts, reversed."""
        shapes = (self.heads, self.fixed), (self.heads, self.rotated), (self.latent,), (1, self.rotated)
        return [rng.standard_normal((sequences, tokens, *shape)) for shape in shapes]

    def trace(self, ctx: Context, bound: BoundCache, inputs: Sequence[Tensor]) -> Tensor:
        tokens = inputs[0].dim(2) * inputs[0].dim(3)
        parts = LatentParts(*(x.reshape(ctx, *x.shape[:-2], tokens) for x in inputs))
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
        cut_prompts(lab, draw, Latent(draw, absorbed=absorbed))
