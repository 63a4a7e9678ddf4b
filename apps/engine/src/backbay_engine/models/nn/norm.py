"""Norms over a token's features."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor
from backbay.gguf import Config

from ..keys import EPSILON, RMS_EPSILON
from .weights import Weights


def rms_epsilon(config: Config) -> float:
    """The epsilon of RMS norms; some files of hybrid models have it under the name of layer norms only."""
    key = EPSILON if RMS_EPSILON.name not in config and EPSILON.name in config else RMS_EPSILON
    return key.of(config)


@final
class RMSNorm:
    """x / sqrt(mean(x^2)), times a weight."""

    def __init__(self, weights: Weights, name: str, width: int, *, or_else: tuple[str, ...] = ()) -> None:
        others = [f"{other}.weight" for other in or_else]
        self.weight = weights.need(f"{name}.weight", width, or_else=others)
        self.eps = rms_epsilon(weights.config)

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        return x.rms_norm(ctx, self.weight, eps=self.eps)


@final
class LayerNorm:
    """(x - mean) / deviation, times a weight, plus a bias if the file has one."""

    def __init__(self, weights: Weights, name: str, width: int) -> None:
        self.weight = weights.need(f"{name}.weight", width)
        self.bias = weights.maybe(f"{name}.bias", width)
        self.eps = EPSILON.of(weights.config)

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        return x.layer_norm(ctx, self.weight, self.bias, eps=self.eps)
