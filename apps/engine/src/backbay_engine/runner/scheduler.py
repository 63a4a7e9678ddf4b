"""The scheduler: which jobs go into the next step, and with how many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .requests.job import Job


@dataclass(frozen=True)
class StepShare:
    """How many of a job's pending tokens go into the step."""

    job: Job
    count: int


@dataclass
class Scheduler:
    """Splits each step's room among jobs.

    Jobs that generate, one token each, go first; then prompts, the longest waiting first, so that none starves. A
    span too large to fit beside the generating jobs goes before them after a step of waiting.

    uniform  all jobs of a step have equally many tokens in it: generating jobs and prompts take turns. The last token
             of a prompt goes beside the generating jobs, so that a recurrent cache keeps a state before it: the same
             prompt can then be continued from there.
    """

    room: int
    uniform: bool = False

    def may_guess(self, jobs: Sequence[Job]) -> bool:
        """Whether guesses may go into a step of these jobs: of uniform steps, only into those of an answer alone."""
        return not self.uniform or (len(jobs) == 1 and jobs[0].answering)

    def split(self, jobs: Sequence[Job]) -> list[StepShare]:
        """The shares of the next step; at least one, if any job has pending tokens."""
        single = together = 0
        for job in jobs:
            single += job.pending == 1
            together += bool(job.spans)
        if single == len(jobs) <= self.room and not together:  # nearly all steps are of this kind
            for job in jobs:
                job.skipped = 0
            return [StepShare(job, 1) for job in jobs]

        def rank(job: Job) -> tuple[bool, bool, int]:
            stuck = job.skipped > 0 and (self.uniform or fitting_tokens(job, self.room - single) == 0)
            return not stuck, job.pending > 1, -job.skipped

        left, shares = self.room, list[StepShare]()
        for job in sorted(jobs, key=rank):
            taken = fitting_tokens(job, left)
            if self.uniform and taken == job.pending > 1 and not job.answering:
                taken = fitting_tokens(job, taken - 1) or taken
            if self.uniform and shares and taken != shares[0].count:
                taken = 0
            job.skipped = 0 if taken else job.skipped + 1
            if taken:
                shares.append(StepShare(job, taken))
                left -= taken
        return shares


def fitting_tokens(job: Job, room: int) -> int:
    """The number of pending tokens that fit without cutting a span."""
    begin, end = job.done, job.done + min(job.pending, room)
    for span in job.spans:
        if span.begin < end < span.end:
            return max(0, span.begin - begin)
    return end - begin
