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


class Schedulable(Protocol):
    """A job, as far as scheduling needs to know it."""

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


J = TypeVar("J", bound=Schedulable)


@dataclass(frozen=True)
class Share(Generic[J]):
    """How many of a job's pending tokens go into the step."""

    job: J
    count: int


@dataclass
class Scheduler:
    """Splits each step's room among jobs.

    First what needs one token, as it is in the midst of an answer; then prompts, longest waiting first. A span that
    would not fit beside the answers goes before them, once it has waited. Where steps must be uniform, all of a step
    take part with equally many tokens.
    """

    room: int
    uniform: bool = False

    def split(self, jobs: Sequence[J]) -> list[Share[J]]:
        """The parts of the next step; at least one, if anything is pending."""
        answering = sum(job.pending == 1 for job in jobs)

        def rank(job: J) -> tuple[bool, bool, int]:
            stuck = job.skipped > 0 and fitting(job, self.room - answering) == 0
            return not stuck, job.pending > 1, -job.skipped

        left, shares = self.room, list[Share[J]]()
        for job in sorted(jobs, key=rank):
            taken = fitting(job, left)
            if self.uniform and shares and taken != shares[0].count:
                taken = 0
            job.skipped = 0 if taken else job.skipped + 1
            if taken:
                shares.append(Share(job, taken))
                left -= taken
        return shares


def fitting(job: Schedulable, room: int) -> int:
    """How many pending tokens fit without cutting a span."""
    begin, end = job.done, job.done + min(job.pending, room)
    for span in job.spans:
        if span.begin < end < span.end:
            return max(0, span.begin - begin)
    return end - begin
