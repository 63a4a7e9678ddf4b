"""Who goes into the next step, and with how much: nobody starves, and what belongs together stays together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


@dataclass(frozen=True)
class Span:
    """Tokens [begin, end) of a prompt that must go through the model in one step, and see each other."""

    begin: int
    end: int


class Waiting(Protocol):
    """A request as far as batching goes."""

    skipped: int  # steps in a row that it had no part in

    @property
    def done(self) -> int:
        """How many of its tokens went through the model."""
        ...

    @property
    def pending(self) -> int:
        """How many tokens are to be computed."""
        ...

    @property
    def spans(self) -> Sequence[Span]:
        """What must not be cut, by the same count as `done`."""
        ...


W = TypeVar("W", bound=Waiting)


@dataclass(frozen=True)
class Share(Generic[W]):
    """So many of a request's pending tokens go into the step."""

    request: W
    count: int


@dataclass
class Turns:
    """Splits each step's room among requests.

    First what needs one token, as it is in the midst of an answer; then prompts, longest waiting first. A span that
    would not fit beside the answers goes before them, once it has waited. Where steps must be uniform, all of a step
    take part with equally many tokens.
    """

    room: int
    uniform: bool = False

    def split(self, requests: Sequence[W]) -> list[Share[W]]:
        """The parts of the next step; at least one, if anything is pending."""
        answering = sum(request.pending == 1 for request in requests)

        def rank(request: W) -> tuple[bool, bool, int]:
            stuck = request.skipped > 0 and fitting(request, self.room - answering) == 0
            return not stuck, request.pending > 1, -request.skipped

        left, shares = self.room, list[Share[W]]()
        for request in sorted(requests, key=rank):
            taken = fitting(request, left)
            if self.uniform and shares and taken != shares[0].count:
                taken = 0
            request.skipped = 0 if taken else request.skipped + 1
            if taken:
                shares.append(Share(request, taken))
                left -= taken
        return shares


def fitting(request: Waiting, room: int) -> int:
    """How many pending tokens fit without cutting a span."""
    begin, end = request.done, request.done + min(request.pending, room)
    for span in request.spans:
        if span.begin < end < span.end:
            return max(0, span.begin - begin)
    return end - begin
