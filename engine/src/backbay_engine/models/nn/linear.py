"""Matrix products with an optional scale and bias."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor

from .weights import Weights


@final
class Linear:
    """y = W x, times a scale and plus a bias if the file has them; with `biased` it must have the bias."""

    def __init__(
        self,
        weights: Weights,
        name: str,
        inputs: int,
        outputs: int | None,
        *,
        biased: bool = False,
        or_else: tuple[str, ...] = (),
    ) -> None:
        others = [f"{other}.weight" for other in or_else]
        self.weight = weights.need(f"{name}.weight", inputs, outputs, or_else=others)
        self.scale = weights.maybe(f"{name}.scale", 1)
        bias = weights.need if biased else weights.maybe
        self.bias = bias(f"{name}.bias", outputs)

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        y = self.weight.mulmat(ctx, x)
        y = y if self.scale is None else y.mul(ctx, self.scale)
        return y if self.bias is None else y.add(ctx, self.bias)
