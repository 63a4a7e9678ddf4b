"""What a runner does now, and what it has done so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final


@final
@dataclass(frozen=True, slots=True)
class SlotState:
    """A sequence: whether a request runs in it, and how many tokens it holds, also for prompts to come."""

    busy: bool = False
    tokens: int = 0


@final
@dataclass(frozen=True, slots=True)
class Totals:
    """Tokens since a model was loaded. They never fall.

    prompt      of the prompts of all requests that began
    reused      of these, those that the cache held already
    generated   of all answers
    """

    prompt: int = 0
    reused: int = 0
    generated: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.prompt + other.prompt, self.reused + other.reused, self.generated + other.generated
        )


@final
@dataclass(frozen=True, slots=True)
class State:
    """A model's requests and sequences at a moment.

    slots       the sequences, `parallel` of them
    waiting     requests that have not begun
    totals      tokens since the model was loaded
    """

    slots: tuple[SlotState, ...] = ()
    waiting: int = 0
    totals: Totals = field(default_factory=Totals)

    @property
    def busy(self) -> int:
        """Requests that run."""
        return sum(slot.busy for slot in self.slots)

    @property
    def free(self) -> int:
        """Sequences in which no request runs."""
        return len(self.slots) - self.busy
