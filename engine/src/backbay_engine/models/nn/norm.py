"""Norms over a token's features."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor

from .shape import epsilon
from .weights import Weights


@final
class RMSNorm:
    """Over the root of the mean square, times a weight."""

    def __init__(self, weights: Weights, name: str, width: int, *, or_else: tuple[str, ...] = ()) -> None:
        others = [f"{other}.weight" for other in or_else]
        self.weight = weights.need(f"{name}.weight", width, or_else=others)
        self.eps = epsilon(weights.config, "attention.layer_norm_rms_epsilon")

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        return x.rms_norm(ctx, self.weight, eps=self.eps)


@final
class LayerNorm:
    """Without the mean, over the deviation, times a weight, plus a bias."""

    def __init__(self, weights: Weights, name: str, width: int) -> None:
        self.weight = weights.need(f"{name}.weight", width)
        self.bias = weights.maybe(f"{name}.bias", width)
        self.eps = epsilon(weights.config, "attention.layer_norm_epsilon")

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        return x.layer_norm(ctx, self.weight, self.bias, eps=self.eps)
