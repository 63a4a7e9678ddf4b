"""What all Gemma models share: scaled embeddings, and capped logits."""

from __future__ import annotations

from math import sqrt

from backbay import Backend, Context, Tensor

from ... import keys
from ...batch import Batch
from ...decoder import Decoder
from ...nn import capped


class Gemma(Decoder):
    """Embeddings are scaled by the root of the width; logits may be capped."""

    def __init__(self, backend: Backend) -> None:
        self.logit_cap = keys.LOGIT_SOFTCAP.of(backend.config, 0.0)
        super().__init__(backend)

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        return super().embed(ctx, batch).scale(ctx, sqrt(self.width))

    def score(self, ctx: Context, x: Tensor) -> Tensor:
        return capped(ctx, super().score(ctx, x), self.logit_cap)
