"""Routing: which experts a token uses, and with which weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Self

from backbay import Context, Tensor
from backbay.gguf import Config

from ..keys import EXPERT_GROUPS, GATING, NORMALIZED_SHARES, SHARE_SCALE, USED_EXPERT_GROUPS
from .shape import Shape

FAR = 1e30  # times any difference of sums, it leaves an expert behind all others


class Gating(IntEnum):
    """How the router's results become odds."""

    SOFTMAX = 1
    SIGMOID = 2
    CHOSEN_SOFTMAX = 3  # over the chosen experts


@dataclass(frozen=True)
class Routing:
    """The best experts of each token by odds plus bias, with the odds as their weights.

    normalized  the weights of a token are divided by their sum
    groups      only the experts of the best `used_groups` groups are chosen; a group counts as much as its best expert,
                with sigmoids as much as its two best
    """

    experts: int
    used: int
    gating: Gating = Gating.SOFTMAX
    normalized: bool = True
    scale: float = 1.0
    groups: int = 1
    used_groups: int = 1

    @classmethod
    def of(
        cls, config: Config, shape: Shape, *, gating: Gating = Gating.SOFTMAX, normalized: bool = True
    ) -> Self:
        """The routing that metadata say; `gating` and `normalized` are for files that say nothing."""
        groups = EXPERT_GROUPS.of(config, 0) or 1
        used_groups = min(USED_EXPERT_GROUPS.of(config, 0) or groups, groups)
        room = shape.experts // groups * used_groups
        if shape.experts % groups or room < shape.used_experts:
            raise EXPERT_GROUPS.refuse(
                config, f"a number of groups in which {shape.used_experts} of {shape.experts} experts fit,"
            )
        return cls(
            shape.experts,
            shape.used_experts,
            Gating(GATING.of(config, gating) or gating),
            NORMALIZED_SHARES.of(config, normalized),
            SHARE_SCALE.of(config, 0.0) or 1.0,
            groups,
            used_groups,
        )

    def __call__(self, ctx: Context, scores: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(experts, tokens) to the ids, (used, tokens), and weights, (1, used, tokens), of the chosen experts."""
        tokens = scores.dim(1)
        over_chosen = self.gating is not Gating.SIGMOID and (
            self.normalized or self.gating is Gating.CHOSEN_SOFTMAX
        )
        odds = scores
        if self.gating is Gating.SIGMOID:
            odds = scores.sigmoid(ctx)
        elif self.gating is Gating.SOFTMAX and not (over_chosen and bias is None and self.groups == 1):
            odds = scores.softmax(ctx)
        plain = bias is None and self.groups == 1 and self.gating is Gating.SIGMOID
        # Sigmoids keep the order, but large scores have equal ones.
        ids = self.best(ctx, scores if plain else odds if bias is None else odds.add(ctx, bias))
        # A softmax over all experts, normalized over the chosen ones, is the softmax over the chosen ones.
        source = scores if over_chosen else odds
        share = source.reshape(ctx, 1, self.experts, tokens).rows(ctx, ids).reshape(ctx, self.used, tokens)
        if over_chosen:
            share = share.softmax(ctx)
        elif self.normalized:
            share = share.div(ctx, share.sum_rows(ctx))
        share = share if self.scale == 1 else share.scale(ctx, self.scale)
        return ids, share.reshape(ctx, 1, self.used, tokens)

    def best(self, ctx: Context, odds: Tensor) -> Tensor:
        """The ids of the experts with the best odds, (used, tokens)."""
        if self.used_groups == self.groups:
            return odds.top_k(ctx, self.used)
        tokens, size = odds.dim(1), self.experts // self.groups
        grouped = odds.reshape(ctx, size, self.groups, tokens)
        count = min(2, size) if self.gating is Gating.SIGMOID else 1
        best = grouped.top_k(ctx, count).reshape(ctx, count, self.groups * tokens)
        top = odds.reshape(ctx, 1, size, self.groups * tokens).rows(ctx, best)  # (1, count, groups * tokens)
        sums = top.reshape(ctx, count, self.groups, tokens).sum_rows(ctx)
        groups = sums.reshape(ctx, self.groups, tokens)
        least = sums.reshape(ctx, 1, self.groups, tokens).rows(ctx, groups.top_k(ctx, self.used_groups))
        least = (
            least.slice(ctx, 1, self.used_groups - 1, self.used_groups)
            .contiguous(ctx)
            .reshape(ctx, 1, tokens)
        )
        behind = groups.sub(ctx, least).clamp(ctx, -inf, 0.0).scale(ctx, FAR)  # 0 for the best groups
        kept = grouped.add(ctx, behind.reshape(ctx, 1, self.groups, tokens))
        return kept.reshape(ctx, self.experts, tokens).top_k(ctx, self.used)
