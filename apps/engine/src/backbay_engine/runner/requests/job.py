"""A job: a request in the runner, with its tokens to compute and its slot."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from ...arguments import AdapterMix
from ...cache.attention.cross_attention import VisibleRows
from ...steps.step import Ints
from ...steps.tokens import MediaToken, Token, encoder_length, ids_of, media_spans, mrope_positions
from ..slots import Slot
from .handle import Receiver
from .token_masks import MaskThread


class MediaRowSource(Protocol):
    """The rows of a request, of its pictures or the caller's own, held until they are released."""

    def of(self, content: bytes) -> NDArray[np.float32]:
        """The rows of a picture, (rows, width)."""
        ...

    def hand_out(self, content: bytes, count: int) -> None:
        """Count rows of a picture that a step takes."""
        ...

    def release(self) -> None: ...


@final
@dataclass(frozen=True)
class MediaRowMap:
    """Rows that no store keeps, by content; `others` has those that a store keeps."""

    rows: Mapping[bytes, NDArray[np.float32]]
    others: MediaRowSource | None = None

    def of(self, content: bytes) -> NDArray[np.float32]:
        if content in self.rows or self.others is None:
            return self.rows[content]
        return self.others.of(content)

    def hand_out(self, content: bytes, count: int) -> None:
        """Let the store count; of its own rows nobody counts."""
        if self.others is not None and content not in self.rows:
            self.others.hand_out(content, count)

    def release(self) -> None:
        if self.others is not None:
            self.others.release()


@dataclass(frozen=True)
class AtomicSpan:
    """Tokens [begin, end) of a prompt that must go through the model in one step, and see each other."""

    begin: int
    end: int


@final
@dataclass(frozen=True)
class PromptLayout:
    """The parts of a sequence that depend on its pictures, or on its text for an encoder.

    spans   tokens that must not be cut
    shown   the pictures that the sequence attends to, if they go to cross attention
    axes    M-RoPE's positions of its tokens, (3, tokens), and the position after them; None: the tokens' places
    """

    spans: Sequence[AtomicSpan] = ()
    shown: Sequence[VisibleRows] = ()
    axes: tuple[Ints, int] | None = None

    @classmethod
    def of(cls, sequence: Sequence[Token], *, pictures: bool) -> PromptLayout:
        if not pictures:
            text = encoder_length(sequence)
            return cls([AtomicSpan(0, text + 1)] if text else ())
        shown, moves = list[VisibleRows](), False
        for span in media_spans(sequence):
            picture, moves = span.media, moves or span.media.positions is not None
            if picture.crosses:
                shown.append(VisibleRows(picture.content, span.begin, picture.crosses, picture.visible))
        return cls(picture_spans(sequence), shown, mrope_positions(sequence) if moves else None)


class Job(ABC):
    """A request in the runner.

    pictures   the rows of the prompt's pictures, or the caller's own; None: the prompt has none
    begin_by   a time of `time.monotonic`
    handle     the caller's end of the request, from its submission on
    slot       an empty one of its own, until it gets one of the runner's
    todo       the tokens that are to be computed next
    guess      the tokens at the end of `todo` that are guessed, while a step verifies them
    again      the tokens before the last ones of `todo` that went back with a wrong guess
    adapters   the fingerprints of the adapters that change the model for it, with their scales
    skipped    steps in a row without a share: the scheduler's
    cancelled  whether its caller wants no more of it: the runner's
    """

    begin_by: float = math.inf
    adapters: AdapterMix = ()
    guess: Sequence[int] = ()
    again: int = 0
    handle: Receiver[Any]

    def __init__(
        self, prompt: Sequence[Token], pictures: MediaRowSource | None = None, *, reuse: bool = True
    ) -> None:
        self.prompt: Sequence[Token] = list(prompt)  # which nobody changes, whatever its caller does
        self.pictures, self.reuse = pictures, reuse
        self.layout = PromptLayout.of(prompt, pictures=pictures is not None)
        self.todo: Sequence[Token] = self.prompt
        self.slot, self.skipped, self.cancelled = Slot(0), 0, False

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether nothing is left to compute for its result."""

    @property
    def done(self) -> int:
        """The number of its tokens that the cache holds."""
        return len(self.slot.tokens)

    @property
    def pending(self) -> int:
        return len(self.todo)

    @property
    def at_last_token(self) -> bool:
        """Whether only the last token is pending, with guesses, and with those that went back with wrong ones."""
        return self.pending == self.again + 1 + len(self.guess)

    @property
    def answering(self) -> bool:
        """Whether it goes on with an answer, at the last token of it."""
        return False

    @property
    def spans(self) -> Sequence[AtomicSpan]:
        return self.layout.spans

    def start(self, slot: Slot) -> None:
        """Take a slot, which may hold the beginning of the prompt."""
        self.slot, self.todo = slot, self.prompt[len(slot.tokens) :]

    def move_on(self, count: int) -> None:
        """The first `count` pending tokens are in the cache now."""
        self.slot.tokens += self.todo[:count]
        self.todo = self.todo[count:]

    def go_back(self, tokens: Sequence[Token]) -> None:
        """Compute tokens again before the pending ones, after the slot has lost some; guesses are taken back."""
        self.todo, self.again = [*tokens, *self.todo], 0
        self.layout = PromptLayout.of([*self.slot.tokens, *self.todo], pictures=self.pictures is not None)

    def ids(self, count: int) -> list[int]:
        tokens = self.todo[:count]
        return tokens if self.pictures is None else ids_of(tokens)  # type: ignore[return-value]  # all are ids

    def axes(self, count: int) -> Ints | None:
        """M-RoPE's positions of the first `count` pending tokens, (3, count); None: they are the tokens' places."""
        if self.layout.axes is None:
            return None
        axes, after = self.layout.axes
        known, done = axes.shape[1], self.done
        later = np.arange(max(done, known), max(done + count, known), dtype=np.int32) + (after - known)
        return np.concatenate([axes[:, done : done + count], np.broadcast_to(later, (3, len(later)))], 1)

    @abstractmethod
    def wanted(self, count: int) -> Sequence[int]:
        """Which of the next `count` pending tokens need results, as indices."""

    @abstractmethod
    def receive(self, rows: NDArray[Any]) -> int:
        """Take the results, (wanted, n); gives how many of the slot's last tokens are wrong guesses."""

    def make_room(self, context: int) -> int | None:
        """The number of first tokens to keep when the context is full; None: the job ends, as prompts never outgrow it."""
        return None

    def look_ahead(self, count: int, ahead: MaskThread) -> None:
        """Begin what can be done while the backend computes the next `count` pending tokens."""

    def arrived(self, seconds: float) -> None:
        """Take note of the time that the preparation and encoding of its pictures took."""

    def end(self, error: BaseException | None = None) -> None:
        """End the job: release its pictures, and give its handle the result or the error."""
        if self.pictures is not None:
            self.pictures.release()
        try:
            self.finish(error)
        except BaseException as failure:  # noqa: BLE001  whoever waits gets it
            self.handle.fail(failure)

    @abstractmethod
    def finish(self, error: BaseException | None = None) -> None:
        """Give the job's handle the result or the error."""


def picture_spans(tokens: Sequence[Token]) -> list[AtomicSpan]:
    """The tokens of pictures that see each other: those that rows replace; separators around them are text."""
    spans = []
    for span in media_spans(tokens):
        if span.media.sees_itself:
            here = range(span.begin, span.end)
            replaced = [at for at in here if isinstance(t := tokens[at], MediaToken) and t.row is not None]
            spans += [AtomicSpan(replaced[0], replaced[-1] + 1)] if replaced else []
    return spans
