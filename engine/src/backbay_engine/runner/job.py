"""A job: a request in the runner, with its tokens to compute and its slot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from .answer import Receiver
from .scheduler import Span
from .slots import Slot


class Job(ABC):
    """A request in the runner. `todo` holds the tokens that are to be computed next."""

    handle: Receiver[Any]
    """The caller's end of the request; set when the job is submitted."""

    def __init__(self, prompt: Sequence[int], spans: Sequence[Span] = (), *, reuse: bool = True) -> None:
        self.prompt = list(prompt)
        self.spans = list(spans)
        self.reuse = reuse
        self.todo = self.prompt
        self.skipped = 0
        self.slot: Slot | None = None
        self.cancelled = False

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

    @abstractmethod
    def wanted(self, count: int) -> Sequence[int]:
        """Which of the next `count` pending tokens need results, as indices."""

    @abstractmethod
    def receive(self, rows: NDArray[Any]) -> bool:
        """Take the results, (wanted, n); False ends the job, else `todo` holds the next tokens."""

    @abstractmethod
    def make_room(self, context: int) -> int | None:
        """The number of first tokens to keep when the context is full; None ends the job."""

    @abstractmethod
    def finish(self, error: BaseException | None = None) -> None:
        """End the job: give its handle the result or the error."""
