"""Norms over the features of a position."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor

from ...models.nn import Weights
from .shape import present


@final
class Norm:
    """A layer norm, or, with `root`, x / sqrt(mean(x^2)); times a weight, and plus a bias if the file has one.

    names   the name that the file has is taken
    """

    def __init__(
        self, weights: Weights, names: tuple[str, ...], width: int, eps: float, *, root: bool = False
    ) -> None:
        name = present(weights, *names)
        self.weight = weights.need(f"{name}.weight", width)
        self.bias = None if root else weights.maybe(f"{name}.bias", width)
        self.eps, self.root = eps, root

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        if self.root:
            return x.rms_norm(ctx, self.weight, eps=self.eps)
        return x.layer_norm(ctx, self.weight, self.bias, eps=self.eps)
