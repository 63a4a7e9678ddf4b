"""Products with matrices, which may have a scale and a bias, and rows of tables: embeddings."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor

from ...errors import RequestError
from ..keys import CONTEXT_LENGTH
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
        self.adapt = weights.adaptable(f"{name}.weight", self.weight)

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        y = self.weight.mulmat(ctx, x)
        y = y if self.scale is None else y.mul(ctx, self.scale)
        y = self.adapt(ctx, x, y)
        return y if self.bias is None else y.add(ctx, self.bias)


@final
class Embedding:
    """A table with a vector for each id."""

    def __init__(self, weights: Weights, name: str, width: int, count: int | None = None) -> None:
        self.weight = weights.need(f"{name}.weight", width, count)

    def __call__(self, ctx: Context, ids: Tensor) -> Tensor:
        return self.weight.rows(ctx, ids)


@final
class Positions:
    """A learned vector for each position."""

    def __init__(self, weights: Weights, width: int) -> None:
        self.embedding = Embedding(weights, "position_embd", width)
        self._weights = weights

    def check(self) -> None:
        """ModelFileError if the file promises a longer context than it has positions."""
        config, known = self._weights.config, self.embedding.weight.dim(1)
        if CONTEXT_LENGTH.of(config) > known:
            raise CONTEXT_LENGTH.refuse(config, f"at most {known} tokens, as position_embd.weight has rows,")

    def fit(self, context: int) -> None:
        known = self.embedding.weight.dim(1)
        if context > known:
            raise RequestError(
                f"a context of {context} tokens, where the model has learned {known} positions; ask for at most "
                f"context={known}"
            )

    def __call__(self, ctx: Context, positions: Tensor) -> Tensor:
        return self.embedding(ctx, positions)
