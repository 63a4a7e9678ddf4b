"""A job: a request in the runner, with its tokens to compute and its slot."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray

from backbay import CancelledError

from ...cache.attention.pictures import Shown
from ...steps.step import Ints
from ...steps.tokens import PictureToken, Token, axes_of, ids_of, places_in, plain_ids, text_length
from ...text.sampling import Sampler
from ..ahead import Ahead
from ..scheduler import Span
from ..slots import Slot
from .handle import Receiver

if TYPE_CHECKING:
    from ..speculation import Guesses


class RowsOfPictures(Protocol):
    """The rows of a request's pictures, held until they are released."""

    def of(self, content: bytes) -> NDArray[np.float32]:
        """The rows of a picture, (rows, width)."""
        ...

    def hand_out(self, count: int) -> None:
        """Count rows that a step takes."""
        ...

    def release(self) -> None: ...


@final
@dataclass(frozen=True)
class RowsAtHand:
    """Rows of pictures that no store keeps, by content."""

    rows: Mapping[bytes, NDArray[np.float32]]

    def of(self, content: bytes) -> NDArray[np.float32]:
        return self.rows[content]

    def hand_out(self, count: int) -> None:
        """Nothing: nobody counts."""

    def release(self) -> None:
        """Nothing: nobody waits."""


class Job(ABC):
    """A request in the runner. `todo` holds the tokens that are to be computed next.

    pictures    the rows of the prompt's pictures; None: the prompt has none
    spans       tokens that must not be cut
    shown       the pictures that its sequence attends to, if they go to cross attention
    guess       tokens at the end of `todo` that are guessed, only while a step verifies them
    refused     how many tokens of the last step do not belong to the answer: the cache is to forget them
    taken       how many tokens of the answer the last results gave
    """

    generates: ClassVar[bool] = False  # whether its results are tokens of an answer
    restores: ClassVar[bool] = False  # whether it is over as soon as it has a slot
    speculates: bool = False  # whether tokens may be guessed
    guesses: Guesses | None = None
    handle: Receiver[Any]
    """The caller's end of the request; set when the job is submitted."""

    def __init__(
        self, prompt: Sequence[Token], pictures: RowsOfPictures | None = None, *, reuse: bool = True
    ) -> None:
        self.prompt = list(prompt)
        self.pictures = pictures
        self.reuse = reuse
        self.todo = self.prompt
        self.guess: list[int] = []
        self.refused = self.taken = 0
        self.kept = False  # whether the shelf was offered its prompt
        self.spans: list[Span] = []
        self.shown: list[Shown] = []
        self._axes: NDArray[np.int32] | None = None
        self._next_axis = 0
        self.skipped = 0
        self.slot: Slot | None = None
        self.cancelled = False
        self.over = False  # before it begins
        self.begin_by = math.inf  # a time of `time.monotonic`
        self._lay_out(self.prompt)

    @property
    def done(self) -> int:
        """The number of its tokens that the cache holds."""
        return len(self.slot.tokens) if self.slot is not None else 0

    @property
    def pending(self) -> int:
        return len(self.todo)

    def start(self, slot: Slot) -> None:
        """Take a slot, which may hold the beginning of the prompt."""
        self.slot = slot
        self.todo = self.prompt[len(slot.tokens) :]

    def move_on(self, count: int) -> None:
        """The first `count` pending tokens are in the cache now."""
        if self.slot is not None:
            self.slot.tokens += self.todo[:count]
        self.todo = self.todo[count:]

    def propose(self, guess: Sequence[int]) -> None:
        """Let the next step verify guesses of the tokens after the pending one."""
        self.guess = list(guess)
        self.todo = [*self.todo, *guess]

    def withdraw(self) -> None:
        """Take guesses back that no step has verified."""
        del self.todo[len(self.todo) - len(self.guess) :]
        self.guess = []

    def guessable(self, context: int) -> int:
        """The most tokens that may be guessed now."""
        return 0

    def known_ids(self) -> list[int]:
        """The ids of all its tokens so far, those of a text for the encoder included."""
        held = self.slot.tokens if self.slot is not None else []
        return plain_ids(ids_of([*held, *self.todo[: len(self.todo) - len(self.guess)]]))

    def sampler_ahead(self) -> Sampler | None:
        """A sampler that chooses the next tokens as this job will; None: it chooses none."""
        return None

    def go_back(self, tokens: Sequence[Token]) -> None:
        """Compute tokens again that the slot has lost, before the pending ones."""
        self.todo = [*tokens, *self.todo]
        if self.slot is not None:
            self._lay_out([*self.slot.tokens, *self.todo])

    def ids(self, count: int) -> list[int]:
        """The ids of the first `count` pending tokens."""
        tokens = self.todo[:count]
        return tokens if self.pictures is None else ids_of(tokens)  # type: ignore[return-value]  # all are ids

    def axes(self, count: int) -> Ints | None:
        """M-RoPE's positions of the first `count` pending tokens, (3, count); None: they are the tokens' places."""
        if self._axes is None:
            return None
        known, done = self._axes.shape[1], self.done
        later = np.arange(max(done, known), max(done + count, known), dtype=np.int32)
        later += self._next_axis - known
        return np.concatenate(
            [self._axes[:, done : done + count], np.broadcast_to(later, (3, len(later)))], 1
        )

    def _lay_out(self, sequence: Sequence[Token]) -> None:
        """Find what depends on the pictures of a sequence: spans, positions, and what cross attention sees."""
        text = text_length(sequence)
        if text:
            self.spans = [Span(0, text + 1)]
        if self.pictures is None:
            return
        places = list(places_in(sequence))
        self.spans = spans_in(sequence)
        self.shown = [
            Shown(place.picture.content, place.begin, place.picture.crosses, place.picture.visible)
            for place in places
            if place.picture.crosses
        ]
        if any(place.picture.positions is not None for place in places):
            self._axes, self._next_axis = axes_of(sequence)
        else:
            self._axes = None

    @abstractmethod
    def wanted(self, count: int) -> Sequence[int]:
        """Which of the next `count` pending tokens need results, as indices."""

    @abstractmethod
    def receive(self, rows: NDArray[Any]) -> bool:
        """Take the results, (wanted, n); False ends the job, else `todo` holds the next tokens."""

    @abstractmethod
    def make_room(self, context: int) -> int | None:
        """The number of first tokens to keep when the context is full; None ends the job."""

    def look_ahead(self, count: int, ahead: Ahead) -> None:
        """Begin what can be done while the backend computes the next `count` pending tokens."""

    def arrived(self, seconds: float) -> None:
        """Take note of the time that the preparation and encoding of its pictures took."""

    def end(self, error: BaseException | None = None) -> None:
        """End the job: release its pictures, and give its handle the result or the error."""
        if self.pictures is not None:
            self.pictures.release()
        self.finish(error)

    @abstractmethod
    def finish(self, error: BaseException | None = None) -> None:
        """Give the job's handle the result or the error."""


class PromptJob(Job):
    """A job about a prompt: it samples nothing, and has one result."""

    @abstractmethod
    def result(self) -> Any:
        """The result; None if the job was cancelled before it was there."""

    def make_room(self, context: int) -> int | None:  # a prompt never outgrows the context
        return None

    def finish(self, error: BaseException | None = None) -> None:
        result = self.result() if error is None else None
        if result is None:
            self.handle.fail(error or CancelledError("the request was cancelled"))
        else:
            self.handle.succeed(result)


def spans_in(tokens: Sequence[Token]) -> list[Span]:
    """The tokens of pictures that see each other: those that rows replace; separators around them are text."""
    spans = []
    for place in places_in(tokens):
        if place.picture.sees_itself:
            here = range(place.begin, place.end)
            replaced = [at for at in here if isinstance(t := tokens[at], PictureToken) and t.row is not None]
            spans += [Span(replaced[0], replaced[-1] + 1)] if replaced else []
    return spans
