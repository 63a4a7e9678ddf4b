"""The contract of sources: where guesses of an answer's next tokens come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..requests.job import Job


class Guesses(ABC):
    """The guesses of one answer."""

    @abstractmethod
    def hope(self) -> float:
        """The probability that the next guess is right, if those before it are; 0: there is none."""

    @abstractmethod
    def learn(self, token: int) -> None:
        """Take the answer's next token."""

    def verified(self, guessed: int, accepted: int) -> None:
        """Take note of how many guesses of a step were right."""


class Source(ABC):
    """Makes the guesses of all answers."""

    @abstractmethod
    def guesses(self, ids: Sequence[int]) -> Guesses:
        """The guesses of an answer after these tokens: the prompt, and the answer so far."""

    @abstractmethod
    def guess(self, jobs: Sequence[Job], counts: Sequence[int]) -> list[list[int]]:
        """Up to so many next tokens of each job."""

    def seconds(self, counts: Sequence[int]) -> float:
        """How long it takes to guess so many tokens of each job; 0: it is not worth to be counted, or not known yet."""
        return 0.0

    def close(self) -> None:
        """Free what the source holds."""
