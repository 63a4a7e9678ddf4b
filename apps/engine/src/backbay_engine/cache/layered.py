"""Several caches as one: each for some of the layers, or one for the decoder and one for the encoder's text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from backbay import BackbayError, Backend, Context, Tensor

from ..errors import CacheShiftError
from ..steps.step import Step
from .attention.causal import BoundCausalCache, CausalCache
from .attention.encoder import BoundEncoderCache, EncoderCache
from .attention.media import MediaCrossAttentionCache
from .cells.cell_table import token_runs
from .cells.contents import CacheContents, join_contents
from .contract import AttentionOperands, BoundCache, Cache, CachePlan, CacheSizes, own_plan


@dataclass(frozen=True)
class JointPlan(CachePlan):
    plans: Sequence[CachePlan]


class JointCache(Cache):
    """Several caches by the names of their contents. If one cache refuses, all stay unchanged."""

    def __init__(self, parts: Mapping[str, Cache]) -> None:
        self._parts, self.caches = parts, tuple(parts.values())

    @property
    def is_uniform(self) -> bool:
        return any(cache.is_uniform for cache in self.caches)

    @property
    def pictures(self) -> MediaCrossAttentionCache | None:
        return next((cache.pictures for cache in self.caches if cache.pictures is not None), None)

    @property
    def used(self) -> int:
        return sum(cache.used for cache in self.caches)

    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        opened: list[Cache] = []
        try:
            for cache in self.caches:
                cache.open(backend, sizes)
                opened.append(cache)
        except BaseException:
            for cache in opened:
                cache.close()
            raise

    def close(self) -> None:
        for cache in self.caches:
            cache.close()

    def reserve(self) -> None:
        for cache in self.caches:
            cache.reserve()

    @property
    def host_nbytes(self) -> int:
        return sum(cache.host_nbytes for cache in self.caches)

    def plan(self, step: Step) -> JointPlan:
        plans: list[CachePlan] = []
        for cache in self.caches:
            try:
                plans.append(cache.plan(step))
            except BaseException:
                for earlier in self.caches[: len(plans)]:
                    earlier.rollback(step)
                raise
        return joint_plan(step, plans)

    @property
    def learns(self) -> bool:
        return any(cache.learns for cache in self.caches)

    def learn(self, sequence: int) -> None:
        for cache in self.caches:
            cache.learn(sequence)

    def contents(self, sequence: int) -> CacheContents:
        return join_contents((name, cache.contents(sequence)) for name, cache in self._parts.items())

    def restore(self, sequence: int, contents: CacheContents) -> None:
        try:
            for name, cache in self._parts.items():
                cache.restore(sequence, contents.part(name))
        except BaseException:
            self.remove(sequence, 0)
            raise

    def wipe(self, sequence: int) -> None:
        for cache in self.caches:
            cache.wipe(sequence)


def joint_plan(step: Step, plans: Sequence[CachePlan]) -> JointPlan:
    return JointPlan(step, tuple([plan.key for plan in plans]), plans)


# -- by layer ------------------------------------------------------------------------------------------------


@final
class LayeredCache(JointCache):
    """Several caches for a model whose layers differ; `kind` gives the index of a layer's cache."""

    caches: tuple[Cache, ...]

    def __init__(self, caches: Sequence[Cache], kind: Callable[[int], int]) -> None:
        if not caches:
            raise ValueError("a layered cache needs at least one cache")
        super().__init__({str(n): cache for n, cache in enumerate(caches)})
        self.kind = kind

    def worst(self, step: Step) -> JointPlan:
        return joint_plan(step, [cache.worst(step) for cache in self.caches])

    def bind(self, ctx: Context, plan: CachePlan) -> BoundLayeredCache:
        plans = own_plan(JointPlan, plan).plans
        return BoundLayeredCache(
            [cache.bind(ctx, own) for cache, own in zip(self.caches, plans, strict=True)], self.kind
        )

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        for cache in self.caches:
            cache.copy_prefix(source, target, length)

    def can_resume(self, sequence: int, position: int) -> bool:
        return all(cache.can_resume(sequence, position) for cache in self.caches)

    def last_resumable(self, sequence: int, position: int) -> int:
        while position and not self.can_resume(sequence, position):
            least = min(cache.last_resumable(sequence, position) for cache in self.caches)
            position = min(least, position - 1)
        return position

    def removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        removals = [cache.removal(sequence, begin, end) for cache in self.caches]

        def remove() -> None:
            try:
                for each in removals:
                    each()
            except BaseException:
                for cache in self.caches:
                    cache.remove(sequence, begin)
                raise

        return remove

    def rollback(self, step: Step) -> None:
        for cache in self.caches:
            cache.rollback(step)


@final
class BoundLayeredCache(BoundCache):
    def __init__(self, bounds: Sequence[BoundCache], kind: Callable[[int], int]) -> None:
        self.bounds, self._kind = tuple(bounds), kind

    def of(self, layer: int) -> BoundCache:
        return self.bounds[self._kind(layer)]

    def fill(self, plan: CachePlan) -> None:
        for bound, own in zip(self.bounds, own_plan(JointPlan, plan).plans, strict=True):
            bound.fill(own)

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        self.of(layer).put(ctx, layer, key, value)

    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> AttentionOperands:
        return self.of(layer).get(ctx, layer, spans=spans)

    def named(self) -> dict[str, Tensor]:
        return {
            f"cache.{n}.{name}": tensor
            for n, bound in enumerate(self.bounds)
            for name, tensor in bound.named().items()
        }


# -- encoder and decoder -------------------------------------------------------------------------------------


@final
class EncoderDecoderCache(JointCache):
    """A sequence begins with its text, whose tokens are below 0, and goes on with the decoder's tokens.

    One step takes the whole text and at least one token of the decoder. The text takes positions, but no cells of the
    decoder's history: its keys and values, one pair for each layer of the decoder, go to an EncoderCache.
    """

    def __init__(self, causal: CausalCache, encoder: EncoderCache) -> None:
        super().__init__({"decoder": causal, "encoder": encoder})
        self.causal, self.encoder = causal, encoder
        self._texts: list[int] = []  # lengths, by sequence

    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        super().open(backend, sizes)
        self._texts = [0] * sizes.sequences

    # -- steps -------------------------------------------------------------------------------------------

    def plan(self, step: Step) -> JointPlan:
        texts = {run.sequence: length for run in token_runs(step) if (length := self._text_of(step, run.row))}
        for sequence in texts:
            if self._text(sequence) or self.causal.cells.end[sequence]:
                raise BackbayError(f"sequence {sequence} has a text already; remove the whole sequence first")
        for sequence, length in texts.items():
            self.encoder.expect(sequence, length)
            self._texts[sequence] = length
        try:
            return super().plan(_of_decoder(step, self._texts))
        except BaseException:
            for sequence in texts:
                self.remove(sequence, 0)
            raise

    def worst(self, step: Step) -> JointPlan:
        own = _of_decoder(step, [0] * (int(step.sequences.max(initial=0)) + 1))
        return joint_plan(own, [self.causal.worst(own), self.encoder.worst(own, step.size - own.size)])

    def bind(self, ctx: Context, plan: CachePlan) -> BoundEncoderDecoderCache:
        causal, encoder = own_plan(JointPlan, plan).plans
        return BoundEncoderDecoderCache(self.causal.bind(ctx, causal), self.encoder.bind(ctx, encoder))

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

    def contents(self, sequence: int) -> CacheContents:
        length, both = self._text(sequence), super().contents(sequence)
        return CacheContents(both.arrays, {**both.numbers, "text.length": length})

    def restore(self, sequence: int, contents: CacheContents) -> None:
        length = contents.part("text").number("length")
        super().restore(sequence, contents)
        self._texts[sequence] = length

    def wipe(self, sequence: int) -> None:
        super().wipe(sequence)
        self._texts[sequence] = 0

    def _text(self, sequence: int) -> int:
        self.causal.check(sequence)
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
    def __init__(self, causal: BoundCausalCache, encoder: BoundEncoderCache) -> None:
        self.causal, self.encoder = causal, encoder

    def fill(self, plan: CachePlan) -> None:
        for bound, own in zip((self.causal, self.encoder), own_plan(JointPlan, plan).plans, strict=True):
            bound.fill(own)

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        self.causal.put(ctx, layer, key, value)

    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> AttentionOperands:
        return self.causal.get(ctx, layer, spans=spans)

    def named(self) -> dict[str, Tensor]:
        return self.causal.named()
