"""Mixture of experts: several feed-forwards, of which each token uses a few, by a routing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf
from typing import Self, final

from backbay import Context, Tensor
from backbay.gguf import Config

from .. import keys
from .feed_forward import Activation, GatedFeedForward, SharedExpert, silu
from .linear import Linear
from .shape import Shape
from .weights import FLOATS, Weights

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
        groups = keys.EXPERT_GROUPS.of(config, 0) or 1
        used_groups = min(keys.USED_EXPERT_GROUPS.of(config, 0) or groups, groups)
        room = shape.experts // groups * used_groups
        if shape.experts % groups or room < shape.used_experts:
            raise keys.EXPERT_GROUPS.refuse(
                config, f"a number of groups in which {shape.used_experts} of {shape.experts} experts fit,"
            )
        return cls(
            shape.experts,
            shape.used_experts,
            Gating(keys.GATING.of(config, gating) or gating),
            keys.NORMALIZED_SHARES.of(config, normalized),
            keys.SHARE_SCALE.of(config, 0.0) or 1.0,
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
        least = least.slice(ctx, 1, self.used_groups - 1, self.used_groups)
        least = least.contiguous(ctx).reshape(ctx, 1, tokens)
        behind = groups.sub(ctx, least).clamp(ctx, -inf, 0.0).scale(ctx, FAR)  # 0 for the best groups
        kept = grouped.add(ctx, behind.reshape(ctx, 1, self.groups, tokens))
        return kept.reshape(ctx, self.experts, tokens).top_k(ctx, self.used)


@final
class ExpertMatrices:
    """A matrix of every expert, (in, out, experts), with scales and biases if the file has them."""

    def __init__(
        self, weights: Weights, name: str, inputs: int, outputs: int, experts: int, *, biased: bool
    ) -> None:
        self.weight = weights.need(f"{name}.weight", inputs, outputs, experts)
        self.scale = weights.maybe(f"{name}.scale", experts)
        bias = weights.need if biased else weights.maybe
        self.bias = bias(f"{name}.bias", outputs, experts, dtypes=FLOATS)
        self.adapt = weights.adaptable(f"{name}.weight", self.weight)

    def __call__(self, ctx: Context, x: Tensor, ids: Tensor) -> Tensor:
        y = self.weight.mulmat_id(ctx, x, ids)
        if self.scale is not None:
            each = self.scale.reshape(ctx, 1, self.scale.dim(0), 1)
            of_tokens = each.repeat_4d(ctx, 1, self.scale.dim(0), ids.dim(1), 1)
            y = y.mul(ctx, of_tokens.rows(ctx, ids))  # (1, used, tokens)
        y = self.adapt(ctx, x, y, ids)
        return y if self.bias is None else y.add_id(ctx, self.bias, ids)


@final
class Experts:
    """A router scores the experts; the result is the weighted sum of each token's best experts, plus that of the
    shared expert if the file has one. A file may have gate and up in one tensor, ffn_gate_up_exps.

    weighs_inputs  the weights multiply what the experts get, instead of what they give
    """

    def __init__(
        self,
        weights: Weights,
        shape: Shape,
        activation: Activation = silu,
        *,
        routing: Routing | None = None,
        normalized: bool = True,
        biased: bool = False,
        gated: bool = True,
        weighs_inputs: bool = False,
        router: Callable[[Context, Tensor], Tensor] | None = None,
    ) -> None:
        width, hidden, self.count = shape.width, shape.hidden, shape.experts
        self.hidden, self.activation, self.weighs_inputs = hidden, activation, weighs_inputs
        self.routing = routing or Routing(shape.experts, shape.used_experts, normalized=normalized)
        self.router = router or Linear(weights, "ffn_gate_inp", width, self.count, biased=biased)
        self.bias = weights.maybe("exp_probs_b.bias", self.count, or_else=("exp_probs_b",))
        self.gate = self.joint = self.shared = None
        if "ffn_gate_up_exps.weight" in weights:
            self.joint = ExpertMatrices(
                weights, "ffn_gate_up_exps", width, 2 * hidden, self.count, biased=biased
            )
        else:
            if gated:
                self.gate = ExpertMatrices(weights, "ffn_gate_exps", width, hidden, self.count, biased=biased)
            self.up = ExpertMatrices(weights, "ffn_up_exps", width, hidden, self.count, biased=biased)
        self.down = ExpertMatrices(weights, "ffn_down_exps", hidden, width, self.count, biased=biased)
        if "ffn_up_shexp.weight" in weights:
            self.shared = SharedExpert(weights, width, activation, gated=gated)

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        ids, share = self.routing(ctx, self.router(ctx, x), self.bias)
        y = self.weighted(ctx, x, ids, share)
        return y if self.shared is None else y.add(ctx, self.shared(ctx, x))

    def weighted(self, ctx: Context, x: Tensor, ids: Tensor, share: Tensor) -> Tensor:
        """The sum of the chosen experts' results times their weights, (width, tokens)."""
        x = x.reshape(ctx, x.dim(0), 1, x.dim(1))
        if self.weighs_inputs:
            x = x.repeat_4d(ctx, x.dim(0), ids.dim(0), x.dim(2), 1).mul(ctx, share)
        if self.joint is not None:
            halves = self.joint(ctx, x, ids).chunk(ctx, 0, self.hidden)
            h = self.activation(ctx, *(half.contiguous(ctx) for half in halves))
        elif self.gate is not None:
            h = self.activation(ctx, self.gate(ctx, x, ids), self.up(ctx, x, ids))
        else:
            h = self.activation(ctx, self.up(ctx, x, ids))
        y = self.down(ctx, h, ids)
        return _sum_of_experts(ctx, y if self.weighs_inputs else y.mul(ctx, share))


def feed_forward_of(
    weights: Weights, layer: int, *, gating: Gating = Gating.SOFTMAX, normalized: bool = True
) -> Experts | GatedFeedForward:
    """Experts, or a single feed-forward if the model has no experts or this block no router."""
    config, router = weights.config, "ffn_gate_inp.weight"
    plain = "ffn_down.weight" in weights and router not in weights
    shape = Shape.of(config, layer, plain=plain, attends=False)
    if not shape.experts:
        return GatedFeedForward(weights, shape)
    if keys.EXPERT_HIDDEN.name not in config:  # Ollama's files state the width of dense blocks alone
        shape = replace(shape, hidden=weights.extent("ffn_up_exps.weight", 1) or shape.hidden)
    return Experts(weights, shape, routing=Routing.of(config, shape, gating=gating, normalized=normalized))


def _sum_of_experts(ctx: Context, y: Tensor) -> Tensor:
    """(width, used, tokens), summed over the experts that each token used."""
    one = (y.dim(0), y.dim(2))
    parts = [y.view(ctx, used * y.stride(1), one, (y.stride(2),)) for used in range(y.dim(1))]
    total = parts[0] if len(parts) > 1 else parts[0].contiguous(ctx)
    for part in parts[1:]:
        total = total.add(ctx, part)
    return total
