"""Guesses from the text itself: what followed the last tokens where they stood before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from ..requests.generation import GenerationJob
from .speculation import GuessSource, GuessTracker

LENGTHS: Final = (3, 2)  # of the n-grams that are looked up
STEPS: Final = (2, 4, 8, 16)  # an agreement of up to so many tokens; a longer one is a class of its own
CHANCES: Final = (0.2, 0.4, 0.6, 0.75, 0.85)  # that the next token agrees too, before an answer has shown any
RATE: Final = 1 / 8


@final
class NgramTracker(GuessTracker):
    """Follows an earlier place of the text as long as it agrees with the answer.

    Guesses cost nothing, so each token is compared with its guess, whether a step verified the guess or not. An answer begins
    with the chances that earlier ones have shown, and teaches them.
    """

    def __init__(self, ids: Sequence[int], chances_of_all: list[float] | None = None) -> None:
        of_all = [*CHANCES] if chances_of_all is None else chances_of_all
        self._ids: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}  # of n-grams: the latest place behind each
        self._chances = [*of_all]
        self._taught = (self._chances, of_all)
        self._at: int | None = None  # the place that is followed
        self._agreed = 0
        for token in ids:
            self._add(token)
        self._look()

    def hope(self) -> float:
        return 0.0 if self._at is None else self._chances[self._class]

    def learn(self, token: int) -> None:
        if self._at is not None:
            right = self._ids[self._at] == token
            for chances in self._taught:
                chances[self._class] += RATE * (right - chances[self._class])
            self._at, self._agreed = (self._at + 1, self._agreed + 1) if right else (None, 0)
        self._add(token)
        if self._at is None:
            self._look()

    def next(self, count: int) -> list[int]:
        """The next tokens of the place that is followed; it may go on in the guesses themselves."""
        if self._at is None:
            return []
        text, found = self._ids, list[int]()
        for place in range(self._at, self._at + count):
            found.append(text[place] if place < len(text) else found[place - len(text)])
        return found

    @property
    def _class(self) -> int:
        return sum(self._agreed > step for step in STEPS)

    def _add(self, token: int) -> None:
        text, here = self._ids, len(self._ids)
        for length in LENGTHS:
            if here >= length:
                self._places[tuple(text[-length:])] = here
        text.append(token)

    def _look(self) -> None:
        """Find the latest earlier place of the last tokens, and how far back both agree."""
        text = self._ids
        for length in LENGTHS:
            place = self._places.get(tuple(text[-length:])) if len(text) >= length else None
            if place is not None:
                agreed, most = length, min(place, STEPS[-1] + 1)
                while agreed < most and text[place - agreed - 1] == text[-agreed - 1]:
                    agreed += 1
                self._at, self._agreed = place, agreed
                return


@final
class NgramSource(GuessSource):
    """Guesses from each answer's own prompt and text; it needs no model."""

    def __init__(self) -> None:
        self._chances = [*CHANCES]

    def guesses(self, ids: Sequence[int]) -> NgramTracker:
        return NgramTracker(ids, self._chances)

    def guess(self, jobs: Sequence[GenerationJob], counts: Sequence[int]) -> list[list[int]]:
        return [
            job.guesses.next(count) if isinstance(job.guesses, NgramTracker) else []
            for job, count in zip(jobs, counts, strict=True)
        ]
