"""Guesses of the model's own head, which goes on from the vectors that the model has before its output matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from ...cache.contract import Cache
from ...models.predicting_head import PredictingHead
from ...steps.step import Floats, MediaRows, Step
from ...steps.tokens import Token, ids_of
from ..requests.generation import GenerationJob
from .draft_model import ModelSource
from .speculation import LONGEST


@dataclass(eq=False)
class RowTrail:
    """The tokens of a sequence from a place on, for each of which the model gave a row.

    rows    of the last ones, which the head has yet to take
    begin   the place of the first token: tokens before it were never seen with a row
    """

    rows: Floats  # (tokens, width)
    begin: int = 0
    tokens: list[Token] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """The rows that the head has taken."""
        return len(self.tokens) - len(self.rows)

    def follow(self, held: list[Token]) -> None:
        """Forget what a sequence of these tokens does not hold; begin behind them if some of them had no row.

        Of a row that the head has taken, it remembers the token that came next: where another text goes on, one is wrong.
        """
        taken, known = self.taken, len(held) - self.begin
        if known < 0 or self.tokens[:known] != held[self.begin :]:
            self.begin, known = len(held), 0
        del self.tokens[known:]
        self.rows = self.rows[: max(0, known - taken)]


@final
class HeadSource(ModelSource):
    """The head takes each token with the row of the token before, of a prompt's tokens as soon as there are some."""

    def __init__(self, model: PredictingHead, cache: Cache, **sizes: int) -> None:
        super().__init__(model, cache, **sizes)
        self._trails: dict[int, RowTrail] = {}
        self._rows: dict[int, Floats] = {}  # those that the next tokens of a sequence go with

    def note(self, job: GenerationJob, count: int, rows: Floats) -> None:
        sequence = job.slot.sequence
        trail = self._trails.setdefault(sequence, RowTrail(rows[:0]))
        trail.follow(job.slot.tokens)
        trail.tokens += job.todo[:count]
        trail.rows = np.concatenate([trail.rows, rows])
        if len(trail.rows) > LONGEST:
            self.feed([(sequence, self._next(sequence, trail, trail.tokens))])

    def missing(self, job: GenerationJob) -> list[int]:
        sequence = job.slot.sequence
        trail = self._trails.get(sequence)
        if trail is None:
            return []
        trail.follow([*job.slot.tokens, *job.todo[:-1]] if job.again else job.slot.tokens)
        return self._next(sequence, trail, [*trail.tokens, job.todo[-1]])

    def _next(self, sequence: int, trail: RowTrail, tokens: Sequence[Token]) -> list[int]:
        """The tokens of a trail that the head takes next, with their rows; what it took for guesses is forgotten."""
        ids = ids_of(tokens[trail.taken + 1 :])
        self.cut(sequence, trail.taken)
        self._rows[sequence], trail.rows = trail.rows[: len(ids)], trail.rows[len(ids) :]
        return ids

    def compute(self, step: Step, parts: Sequence[tuple[int, list[int]]]) -> Floats:
        rows = [self._rows[sequence][: len(ids)] for sequence, ids in parts]
        values = MediaRows(np.concatenate(rows), np.arange(step.size, dtype=np.int32))
        logits = super().compute(replace(step, rows=values), parts)
        for (sequence, ids), own in zip(parts, self.step_cache.rows, strict=True):
            left = self._rows[sequence][len(ids) :]
            self._rows[sequence] = left if len(left) else own[None]
        return logits
