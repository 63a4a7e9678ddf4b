"""What a request is while it runs: tokens to compute, the slot they go to, and what becomes of the results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from .scheduler import Span
from .slots import Slot


class Job(ABC):
    """A request on its way through the model."""

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
        """How many of its tokens the cache holds."""
        return len(self.slot.tokens) if self.slot is not None else 0

    @property
    def pending(self) -> int:
        return len(self.todo)

    def start(self, slot: Slot) -> None:
        """A slot was found, which holds the beginning of the prompt."""
        self.slot = slot
        self.todo = self.prompt[len(slot.tokens) :]

    def move_on(self, count: int) -> None:
        """So many of the pending tokens are in the cache now."""
        if self.slot is not None:
            self.slot.tokens += self.todo[:count]
        self.todo = self.todo[count:]

    @abstractmethod
    def wanted(self, count: int) -> Sequence[int]:
        """Which of the next `count` pending tokens' results are needed, as indices."""

    @abstractmethod
    def receive(self, rows: NDArray[Any]) -> bool:
        """Take these results, (wanted, n), and say whether to go on; `todo` then has what is next."""

    @abstractmethod
    def make_room(self, context: int) -> int | None:
        """How many first tokens to keep when the context is full; None to end here."""

    @abstractmethod
    def finish(self, error: BaseException | None = None) -> None:
        """It is over: whoever waits is told."""
