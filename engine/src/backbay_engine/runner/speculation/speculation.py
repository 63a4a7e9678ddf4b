"""How many tokens of which answers are guessed for a step, so that it pays."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Final, final

from ..requests.job import Job
from ..scheduler import Share
from .contract import Source
from .pace import Pace

log = logging.getLogger(__name__)

SIZES: Final = (2, 4, 8, 16)  # tokens of a step with guesses: few sizes, as each is traced
LONGEST: Final = SIZES[-1]
GAIN: Final = 1.03  # the least gain that is worth it


@final
class Speculation:
    """Adds guesses to the steps of a runner where more tokens a second are expected of it.

    The source says how likely its guesses are, and the pace what they cost; with many answers at once, or where few
    guesses are right, nothing is added.
    """

    def __init__(self, source: Source, pace: Pace | None = None) -> None:
        self.source, self.pace = source, pace or Pace()
        self._broken = False

    def begin(self, job: Job) -> None:
        """Make the guesses of a job that begins."""
        if job.speculates and not self._broken:
            job.guesses = self.source.guesses(job.known_ids())

    def extended(self, shares: Sequence[Share[Job]], context: int, room: int) -> Sequence[Share[Job]]:
        """The shares with guesses behind their tokens; as they are, where that does not pay or a prompt is among them.

        context   tokens of a sequence
        room      tokens of a step
        """
        jobs = [share.job for share in shares]
        # A prompt may have a share of one token too, where the next ones must not be cut: nothing goes in between.
        if self._broken or not jobs or not all(job.generates and job.pending == 1 for job in jobs):
            return shares
        counts = self._counts(jobs, [job.guessable(context) for job in jobs], min(room, LONGEST))
        if not any(counts):
            return shares
        try:
            found = self.source.guess(jobs, counts)
        except Exception:
            self._broken = True  # answers need no guesses
            log.exception("guessing failed: answers go on with a token a step")
            return shares
        for job, guess in zip(jobs, found, strict=True):
            job.propose(guess)
        return [Share(job, 1 + len(job.guess)) for job in jobs]

    def note(self, shares: Sequence[Share[Job]], begun: float) -> None:
        """Take note of how long a step took, which began at this time of the clock."""
        if all(share.job.generates and share.count == 1 + len(share.job.guess) for share in shares):
            self.pace.note(sum(share.count for share in shares), perf_counter() - begun)

    def close(self) -> None:
        self.source.close()

    def _counts(self, jobs: Sequence[Job], most: Sequence[int], room: int) -> list[int]:
        """How many tokens to guess of each job, in a step of up to `room` tokens."""
        alone = len(jobs)
        hopes = [0.0 if job.guesses is None else job.guesses.hope() for job in jobs]
        least = self.pace.known(alone) if alone < room and any(hopes) else None
        if least is None:  # first measure steps without guesses
            return [0] * alone
        best, chosen = GAIN * alone / least, [0] * alone
        chances, counts, expected = list(hopes), [0] * alone, float(alone)
        for size in range(alone + 1, room + 1):
            at = max(range(alone), key=lambda n: chances[n] if counts[n] < most[n] else 0.0)
            if counts[at] >= most[at] or not chances[at]:
                break
            expected += chances[at]
            counts[at] += 1
            chances[at] *= hopes[at]
            seconds = self.pace.seconds(size, alone) if size in SIZES else None
            if seconds is None:
                continue
            rate = expected / max(seconds + self.source.seconds(counts), 1e-9)
            if rate > best:
                best, chosen = rate, list(counts)
        return chosen
