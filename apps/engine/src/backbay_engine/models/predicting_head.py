"""A block of a decoder's file that predicts the token after the next one (MTP, NextN), as a small model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from backbay import Context, Tensor

from ..cache.attention.causal import CausalCache
from ..cache.contract import Cache
from ..errors import RequestError
from ..steps.step import Floats, Step, full_of_rows
from .bases import Decoder
from .batch import Batch
from .contract import Model
from .keys import PREDICTING_BLOCKS
from .nn import Embedding, Linear, RMSNorm, Weights


@final
class PredictingHead(Model):
    """The first predicting block of a decoder's file, as DeepSeek V3 and GLM 4.5 have it.

    Each token of a step has a row, the vector that was before the output matrix at the token before it: the decoder's
    or, behind a guess, the head's own. Token and row are normed, joined, and go through a block of the decoder's kind.
    """

    keeps_rows = True

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder.backend)
        self.decoder, self.layer, width = decoder, len(decoder.blocks), decoder.width
        weights = Weights(decoder.backend)
        here = weights.at(f"blk.{self.layer}.nextn.")
        _require_predicting_block(decoder, here)
        self.block = decoder.block(weights, self.layer)
        self.token_norm, self.row_norm = (RMSNorm(here, name, width) for name in ("enorm", "hnorm"))
        self.join = Linear(here, "eh_proj", 2 * width, width)
        self.embedding = Embedding(here, "embed_tokens", width) if "embed_tokens.weight" in here else None
        own_norm, own_head = (f"shared_head_{name}.weight" in here for name in ("norm", "head"))
        self.norm = RMSNorm(here, "shared_head_norm", width) if own_norm else decoder.norm
        size = decoder.vocabulary_size
        self.score = Linear(here, "shared_head_head", width, size) if own_head else decoder.score
        weights.require()

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        host, at = ctx.input(), ctx.layer(self.layer)
        rows = batch.input("rows", _rows)  # (width, tokens)
        own = self.embedding
        tokens = self.decoder.embed(host, batch) if own is None else own(host, batch.tokens)
        x = self.join(at, self.token_norm(at, tokens).concat(at, self.row_norm(at, rows), 0))
        x = batch.tap("output_norm", self.norm(at, self.block(at, self.layer, x, batch, last=True)))
        return batch.tap("logits", self.score(at, x))

    def worst_steps(self, steps: Sequence[Step]) -> Sequence[Step]:
        return [full_of_rows(step, self.decoder.width, spans=False) for step in steps]

    def fit(self, context: int) -> None:
        if self.block.rope is not None:
            self.block.rope.fit(context)

    def new_cache(self) -> Cache:
        return CausalCache(None)

    @property
    def vocabulary_size(self) -> int:
        return self.decoder.vocabulary_size


def _require_predicting_block(decoder: Decoder, weights: Weights) -> None:
    """RequestError unless the file has a predicting block, and no windows, which such a block would not fit."""
    config, lacks = decoder.config, ""
    if not PREDICTING_BLOCKS.of(config, 0):
        lacks = f"a key {config.architecture}.{PREDICTING_BLOCKS.name} above 0 in the metadata"
    elif "eh_proj.weight" not in weights:
        lacks = f"a tensor {weights.prefix}eh_proj.weight"
    elif any(decoder.slides):
        lacks = "blocks that see everything"
    if lacks:
        raise RequestError(f"speculate='mtp' needs a head that predicts tokens: the model lacks {lacks}")


def _rows(step: Step) -> Floats:
    assert step.rows is not None  # of all tokens
    return step.rows.values
