"""Mixture of experts: several feed-forwards, of which each token uses a few."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

from backbay import Context, Tensor

from ..keys import NORMALIZED_SHARES
from .feed_forward import GatedFeedForward
from .linear import Linear
from .shape import Shape
from .weights import FLOATS, Weights

Activation: TypeAlias = Callable[[Context, Tensor, Tensor], Tensor]


def silu(ctx: Context, gate: Tensor, up: Tensor) -> Tensor:
    return gate.silu(ctx, up)


@final
class Expert:
    """A matrix of every expert, (in, out, experts), with scales and biases if the file has them."""

    def __init__(
        self, weights: Weights, name: str, inputs: int, outputs: int, experts: int, *, biased: bool
    ) -> None:
        self.weight = weights.need(f"{name}.weight", inputs, outputs, experts)
        self.scale = weights.maybe(f"{name}.scale", experts)
        bias = weights.need if biased else weights.maybe
        self.bias = bias(f"{name}.bias", outputs, experts, dtypes=FLOATS)

    def __call__(self, ctx: Context, x: Tensor, ids: Tensor) -> Tensor:
        y = self.weight.mulmat_id(ctx, x, ids)
        if self.scale is not None:
            each = self.scale.reshape(ctx, 1, self.scale.dim(0), 1)
            of_tokens = each.repeat_4d(ctx, 1, self.scale.dim(0), ids.dim(1), 1)
            y = y.mul(ctx, of_tokens.rows(ctx, ids))  # (1, used, tokens)
        return y if self.bias is None else y.add_id(ctx, self.bias, ids)


@final
class Experts:
    """A router scores the experts; the result is the weighted sum of each token's best experts.

    normalized  True: the weights are the softmax over the chosen scores, and add up to 1
                False: they are the softmax over all scores, taken at the chosen ones
    """

    def __init__(
        self,
        weights: Weights,
        shape: Shape,
        activation: Activation = silu,
        *,
        normalized: bool = True,
        biased: bool = False,
    ) -> None:
        width, hidden, self.count = shape.width, shape.hidden, shape.experts
        self.router = Linear(weights, "ffn_gate_inp", width, self.count, biased=biased)
        self.gate = Expert(weights, "ffn_gate_exps", width, hidden, self.count, biased=biased)
        self.up = Expert(weights, "ffn_up_exps", width, hidden, self.count, biased=biased)
        self.down = Expert(weights, "ffn_down_exps", hidden, width, self.count, biased=biased)
        self.activation, self.normalized, self.used = activation, normalized, shape.used_experts

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        width, tokens = x.dim(0), x.dim(1)
        scores = self.router(ctx, x)  # (experts, tokens)
        if not self.normalized:
            scores = scores.softmax(ctx)
        ids = scores.top_k(ctx, self.used)  # (used, tokens)
        share = scores.reshape(ctx, 1, self.count, tokens).rows(ctx, ids)  # (1, used, tokens)
        if self.normalized:
            share = share.reshape(ctx, self.used, tokens).softmax(ctx).reshape(ctx, 1, self.used, tokens)
        x = x.reshape(ctx, width, 1, tokens)
        h = self.activation(ctx, self.gate(ctx, x, ids), self.up(ctx, x, ids))
        return _sum_of_experts(ctx, self.down(ctx, h, ids).mul(ctx, share))


def feed_forward_of(weights: Weights, layer: int) -> Experts | GatedFeedForward:
    """Experts, or a single feed-forward if the model has no experts or this block no router."""
    config, router = weights.config, "ffn_gate_inp.weight"
    plain = "ffn_gate.weight" in weights and router not in weights
    shape = Shape.of(config, layer, plain=plain, attends=False)
    if not shape.experts:
        return GatedFeedForward(weights, shape)
    return Experts(weights, shape, normalized=NORMALIZED_SHARES.of(config, True))


def _sum_of_experts(ctx: Context, y: Tensor) -> Tensor:
    """(width, used, tokens), summed over the experts that each token used."""
    one = (y.dim(0), y.dim(2))
    parts = [y.view(ctx, used * y.stride(1), one, (y.stride(2),)) for used in range(y.dim(1))]
    total = parts[0] if len(parts) > 1 else parts[0].contiguous(ctx)
    for part in parts[1:]:
        total = total.add(ctx, part)
    return total
