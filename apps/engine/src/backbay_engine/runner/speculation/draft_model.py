"""Guesses of a model beside the one that answers; of a small one with the same vocabulary, perhaps on another backend."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Final, final

import numpy as np

from backbay import Backend

from ...cache.contract import Cache
from ...models.contract import Model
from ...steps.step import Floats, Step, step_of
from ...text.sampling import Sampler
from ..requests.generation import GenerationJob
from ..slots import common_length
from ..traced_steps import StepCache
from .speculation import GuessSource, GuessTracker, StepTimes

PRIOR: Final = 0.7  # the hope before anything was verified
SURE: Final = 12  # verified guesses after which each further one counts as much as the last
DOUBT: Final = 2  # verified guesses that the hope before them is worth
RETURN: Final = 1 / 512  # by which hope returns to the prior at a token: so guesses are tried again


@final
class AcceptanceMeter:
    """How likely the next guess of the small model is right, by those that were verified."""

    def __init__(self, value: float = PRIOR) -> None:
        self.value = value
        self._seen = 0

    def learn(self, right: bool) -> None:
        self._seen = min(self._seen + 1, SURE)
        self.value += (right - self.value) / (DOUBT + self._seen)

    def fade(self) -> None:
        self.value += RETURN * (PRIOR - self.value)


@final
class DraftTracker(GuessTracker):
    """How often the small model was right lately, in one answer; an answer begins with what earlier ones have shown."""

    def __init__(self, of_all: AcceptanceMeter, pace: StepTimes) -> None:
        self._hopes = (AcceptanceMeter(of_all.value), of_all)
        self._pace = pace

    def hope(self) -> float:
        return self._hopes[0].value

    def learn(self, token: int) -> None:
        self._pace.age()
        for hope in self._hopes:
            hope.fade()

    def verified(self, guessed: int, accepted: int) -> None:
        for right in [True] * accepted + [False] * (accepted < guessed):
            for hope in self._hopes:
                hope.learn(right)


class ModelSource(GuessSource):
    """A model with a cache of its own, whose sequences are those of the answering model's slots.

    It chooses its tokens as the answer does: with the same options, and the same random numbers.
    """

    def __init__(
        self, model: Model, cache: Cache, *, parallel: int, context: int, batch: int, vocabulary_size: int
    ) -> None:
        self.model, self.cache, self.step_cache = model, cache, StepCache(model, cache)
        self._context, self._batch, self._vocabulary = context, batch, vocabulary_size
        self._held: list[list[int]] = [[] for _ in range(parallel)]  # tokens of each sequence
        self._hope = AcceptanceMeter()
        self._pace = StepTimes()  # of rounds: a token of each of some answers

    @property
    def backend(self) -> Backend:
        return self.model.backend

    def guesses(self, ids: Sequence[int]) -> DraftTracker:
        return DraftTracker(self._hope, self._pace)

    def seconds(self, counts: Sequence[int]) -> float:
        answers = [sum(count > done for count in counts) for done in range(max(counts, default=0))]
        return sum(self._pace.known(number) or 0.0 for number in answers)  # what is unknown is tried

    def guess(self, jobs: Sequence[GenerationJob], counts: Sequence[int]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in jobs]
        chosen: list[tuple[int, int, Sampler]] = []  # the answer, its sequence, and a sampler of its own
        fed: dict[int, list[int]] = {}
        for n, (job, count) in enumerate(zip(jobs, counts, strict=True)):
            if not count or job.done + job.pending + count > self._context:
                continue
            fed[n] = self.missing(job)
            if fed[n]:
                chosen.append((n, job.slot.sequence, job.sampler.fork()))
        while chosen:
            begun, alike = perf_counter(), all(len(fed[n]) == 1 for n, *_ in chosen)
            rows = self.feed([(sequence, fed[n]) for n, sequence, _ in chosen])
            for (n, _, sampler), row in zip(chosen, rows, strict=True):
                token = sampler.sample(self._fitted(row)).token
                found[n].append(token)
                fed[n] = [token]
            if alike:
                self._pace.note(len(chosen), perf_counter() - begun)
            chosen = [each for each in chosen if len(found[each[0]]) < counts[each[0]]]
        return found

    @abstractmethod
    def missing(self, job: GenerationJob) -> list[int]:
        """Let a job's sequence hold only what leads to its next token; gives the tokens that follow, none if that fails."""

    def compute(self, step: Step, parts: Sequence[tuple[int, list[int]]]) -> Floats:
        """The logits of a step of these parts: sequences, and the next tokens of each."""
        return self.step_cache.run(step)

    def close(self) -> None:
        self.step_cache.close()
        self.cache.close()

    def cut(self, sequence: int, length: int) -> None:
        """Let a sequence hold only its first tokens."""
        self.cache.remove(sequence, length)
        del self._held[sequence][length:]

    def feed(self, parts: Sequence[tuple[int, list[int]]]) -> list[Floats]:
        """The logits after the last token of each part: a sequence, and its next tokens."""
        if sum(len(ids) for _, ids in parts) <= self._batch and not self.cache.is_uniform:
            return list(self._run(parts))
        found = []
        for sequence, ids in parts:
            chunks = [ids[at : at + self._batch] for at in range(0, len(ids), self._batch)]
            found.append([self._run([(sequence, chunk)])[0] for chunk in chunks][-1])
        return found

    def _run(self, parts: Sequence[tuple[int, list[int]]]) -> Floats:
        ends = np.cumsum([len(ids) for _, ids in parts], dtype=np.int32)
        step = step_of([(sequence, len(self._held[sequence]), ids) for sequence, ids in parts], ends - 1)
        rows = self.compute(step, parts)
        for sequence, ids in parts:
            self._held[sequence] += ids
        return rows

    def _fitted(self, row: Floats) -> Floats:
        """Logits for the large model's vocabulary, which may have more tokens or fewer behind the common ones."""
        fitted = np.full(self._vocabulary, -np.inf, np.float32)
        width = min(self._vocabulary, len(row))
        fitted[:width] = row[:width]
        return fitted


@final
class DraftModel(ModelSource):
    """A small model of its own file, on a backend of its own."""

    def missing(self, job: GenerationJob) -> list[int]:
        ids, sequence = job.known_ids, job.slot.sequence
        common = common_length(self._held[sequence], ids)
        kept = self.cache.last_resumable(sequence, min(common, len(ids) - 1))
        self.cut(sequence, kept)
        return ids[kept:]

    def close(self) -> None:
        super().close()
        self.backend.close()
