"""The cache of models with an encoder and a decoder: the decoder's own history, and the text that it attends to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from backbay import BackbayError, Backend, Context, Tensor

from ...errors import CacheShiftError
from ...steps.step import Step
from ..cells.bookkeeping import runs_of
from ..cells.contents import Contents, joined
from ..contract import BoundCache, Cache, CachePlan, CacheSizes, History, own_plan
from .bound_causal import BoundCausalCache, CausalPlan
from .causal import CausalCache
from .encoder import BoundEncoderCache, EncoderCache, EncoderPlan


@dataclass(frozen=True)
class EncoderDecoderPlan(CachePlan):
    """The plans of both caches."""

    causal: CausalPlan
    encoder: EncoderPlan


@final
class EncoderDecoderCache(Cache):
    """A sequence begins with its text, whose tokens are below 0, and goes on with the decoder's tokens.

    One step takes the whole text and at least one token of the decoder. The text takes positions, but no cells of the
    decoder's history: its keys and values, one pair for each layer of the decoder, go to an EncoderCache.
    """

    def __init__(self, causal: CausalCache, encoder: EncoderCache) -> None:
        self.causal, self.encoder = causal, encoder
        self._texts: list[int] = []  # lengths, by sequence

    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        self.causal.open(backend, sizes)
        try:
            self.encoder.open(backend, sizes)
        except BaseException:
            self.causal.close()
            raise
        self._texts = [0] * sizes.sequences

    def close(self) -> None:
        self.causal.close()
        self.encoder.close()

    def reserve(self) -> None:
        self.causal.reserve()

    @property
    def host_nbytes(self) -> int:
        return self.causal.host_nbytes + self.encoder.host_nbytes

    @property
    def used(self) -> int:
        return self.causal.used + self.encoder.used

    # -- steps -------------------------------------------------------------------------------------------

    def plan(self, step: Step) -> EncoderDecoderPlan:
        texts = {run.sequence: length for run in runs_of(step) if (length := self._text_of(step, run.row))}
        for sequence in texts:
            if self._text(sequence) or self.causal.cells.end[sequence]:
                raise BackbayError(f"sequence {sequence} has a text already; remove the whole sequence first")
        for sequence, length in texts.items():
            self.encoder.expect(sequence, length)
            self._texts[sequence] = length
        own = _of_decoder(step, self._texts)
        try:
            causal = self.causal.plan(own)
            try:
                encoder = self.encoder.plan(own)
            except BaseException:
                self.causal.rollback(own)
                raise
        except BaseException:
            for sequence in texts:
                self.remove(sequence, 0)
            raise
        return EncoderDecoderPlan(step, (causal.key, encoder.key), causal, encoder)

    def worst(self, step: Step) -> EncoderDecoderPlan:
        own = _of_decoder(step, [0] * (int(step.sequences.max(initial=0)) + 1))
        causal, encoder = self.causal.worst(own), self.encoder.worst(own, step.size - own.size)
        return EncoderDecoderPlan(step, (causal.key, encoder.key), causal, encoder)

    def bind(self, ctx: Context, plan: CachePlan) -> BoundEncoderDecoderCache:
        own = own_plan(EncoderDecoderPlan, plan)
        return BoundEncoderDecoderCache(
            self.causal.bind(ctx, own.causal), self.encoder.bind(ctx, own.encoder)
        )

    def _text_of(self, step: Step, row: int) -> int:
        """The length of the text that begins at a row of a step; 0 if there is none."""
        sequence, position = int(step.sequences[row]), int(step.positions[row])
        here = (step.sequences == sequence) & (step.tokens < 0)
        length = int(here.sum())
        if not length:
            return 0
        tokens = step.tokens[row:]
        if position or (tokens[:length] >= 0).any() or len(tokens) == length or tokens[length] < 0:
            raise BackbayError(
                f"sequence {sequence}: a text for the encoder begins a sequence, and goes through in one step with the "
                f"decoder's first token; got {length} of its tokens from position {position} on"
            )
        return length

    # -- sequences -------------------------------------------------------------------------------------

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        text = self._text(source)
        if source == target or length < max(text, 1):
            self.remove(target, length if source == target else 0)
            return
        self.causal.copy_prefix(source, target, length - text)
        self.encoder.copy_prefix(source, target, length)
        self._texts[target] = text

    def can_resume(self, sequence: int, position: int) -> bool:
        """At the begin, or behind the whole text."""
        text = self._text(sequence)
        return position == 0 or (position >= text and self.causal.can_resume(sequence, position - text))

    def removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        text = self._text(sequence)
        if begin < text and end is not None and end < text + self.causal.cells.end[sequence]:
            raise CacheShiftError(
                f"sequence {sequence}: positions [{begin}, {end}) cannot be removed: the decoder attends to the whole "
                f"text of {text} tokens"
            )
        own = self.causal.removal(sequence, max(begin - text, 0), None if end is None else end - text)

        def remove() -> None:
            own()
            if begin < max(text, 1):
                self.encoder.remove(sequence, 0)
                self._texts[sequence] = 0

        return remove

    def contents(self, sequence: int) -> Contents:
        own = Contents({}, {"length": self._text(sequence)})
        parts = (("decoder", self.causal), ("encoder", self.encoder))
        return joined([("text", own), *((name, cache.contents(sequence)) for name, cache in parts)])

    def restore(self, sequence: int, contents: Contents) -> None:
        length = contents.part("text").number("length")
        try:
            self.causal.restore(sequence, contents.part("decoder"))
            self.encoder.restore(sequence, contents.part("encoder"))
        except BaseException:
            self.remove(sequence, 0)
            raise
        self._texts[sequence] = length

    def wipe(self, sequence: int) -> None:
        self.causal.wipe(sequence)
        self.encoder.wipe(sequence)
        self._texts[sequence] = 0

    def _text(self, sequence: int) -> int:
        self.causal.cells.check(sequence)
        return self._texts[sequence]


def _of_decoder(step: Step, texts: list[int]) -> Step:
    """The decoder's tokens of a step, at their positions behind the texts."""
    own = step.tokens >= 0
    sequences = step.sequences[own]
    behind = np.asarray(texts, np.int32)[sequences]
    positions = np.asarray(step.positions[own] - behind, np.int32)
    return Step(step.tokens[own], positions, sequences, step.outputs)


@final
class BoundEncoderDecoderCache(BoundCache):
    """Both caches of a traced step."""

    def __init__(self, causal: BoundCausalCache, encoder: BoundEncoderCache) -> None:
        self.causal, self.encoder = causal, encoder

    def fill(self, plan: CachePlan) -> None:
        own = own_plan(EncoderDecoderPlan, plan)
        self.causal.fill(own.causal)
        self.encoder.fill(own.encoder)

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        self.causal.put(ctx, layer, key, value)

    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> History:
        return self.causal.get(ctx, layer, spans=spans)

    def named(self) -> dict[str, Tensor]:
        return self.causal.named()
