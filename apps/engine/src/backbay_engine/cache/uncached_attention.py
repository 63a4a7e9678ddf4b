"""A cache in name only, for models of whole texts: each token sees tokens of its text, all of them in this step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, CacheConfig, Context, Tensor

from ..steps.step import Step
from .cells.masks import HIDDEN
from .contract import AttentionOperands, BoundCache, CachePlan


@dataclass(frozen=True)
class Reach:
    """The tokens of its text that a token sees.

    causal   only earlier ones, and itself
    window   None: no matter how far; else causal: so many positions, itself included; otherwise half as many on
             each side, beside itself
    slopes   for each head, by how much a score shrinks with each position of distance (ALiBi)
    """

    causal: bool = False
    window: int | None = None
    slopes: tuple[float, ...] = ()

    def mask(self, step: Step, padding: int) -> NDArray[np.float32]:
        """(tokens and padding, tokens) to add to the scores; a mask for each head if there are slopes."""
        distance = step.positions[:, None] - step.positions
        seen = step.sequences[:, None] == step.sequences
        if self.causal:
            seen &= distance >= 0
        if self.window is not None:
            seen &= np.abs(distance) <= (self.window - 1 if self.causal else self.window // 2)
        rows = ((0, -step.size % padding), (0, 0))
        mask = np.pad(np.where(seen, np.float32(0), np.float32(HIDDEN)), rows)
        if not self.slopes:
            return mask
        away = np.pad(np.abs(distance).astype(np.float32), rows)
        return np.stack([mask - np.float32(slope) * away for slope in self.slopes])


@final
class UncachedAttention(BoundCache):
    """The keys and values of one step, under the mask of each layer."""

    def __init__(self, config: CacheConfig, mask: Callable[[int], Tensor]) -> None:
        self._config, self._mask = config, mask
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def fill(self, plan: CachePlan) -> None:
        raise BackbayError("a model of whole texts keeps nothing between steps")

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        if self._config.permuted_v:
            value = value.permute(ctx, 1, 2, 0).contiguous(ctx)  # (tokens, value_head, heads)
        self._held[layer] = key, value

    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> AttentionOperands:
        return AttentionOperands(*self._held[layer], self._mask(layer))
