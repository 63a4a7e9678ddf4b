"""The frame of models of whole texts, which give a vector or a score for each text."""

from __future__ import annotations

from abc import abstractmethod
from typing import final

from backbay import Context, Tensor

from ..cache.step_only import Reach, StepOnly
from .batch import Batch
from .contract import Model
from .decoder import Decoder
from .nn import TextHead


class Encoder(Model):
    """Attention within each text of the step; `reach` says how far, `hidden` gives the vectors of all tokens."""

    head: TextHead

    @abstractmethod
    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        """(width, tokens)"""

    @property
    @abstractmethod
    def layers(self) -> int:
        """The number of blocks."""

    def reach(self, layer: int) -> Reach:
        """The tokens that a token sees in a block; by default those of its text."""
        return Reach()

    @property
    def ranks(self) -> bool:
        return self.head.ranks

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        config = self.backend.cache_config()

        def mask(layer: int) -> Tensor:
            reach = self.reach(layer)
            name = "mask" if reach == self.reach(0) else f"mask {reach.window}"
            return batch.input(
                name, lambda step: reach.mask(step, config.mask_batch_padding), config.mask_dtype
            )

        batch.cache = StepOnly(config, mask)
        x = self.hidden(ctx, batch)
        return batch.tap("pooled", self.head(ctx.layer(self.layers), x, batch))


@final
class TextDecoder(Encoder):
    """A decoder whose file asks for vectors or scores of texts instead of next tokens."""

    def __init__(self, decoder: Decoder, head: TextHead) -> None:
        super().__init__(decoder.backend)
        self.decoder, self.head = decoder, head

    @property
    def vocabulary_size(self) -> int:
        return self.decoder.vocabulary_size

    @property
    def layers(self) -> int:
        return len(self.decoder.blocks)

    def fit(self, context: int) -> None:
        self.decoder.fit(context)

    def reach(self, layer: int) -> Reach:
        decoder = self.decoder
        return Reach(decoder.causal, decoder.window if decoder.slides[layer] else None)

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        return self.decoder.features(ctx, batch, every=True)
