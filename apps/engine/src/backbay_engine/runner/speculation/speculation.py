"""How many tokens of which answers are guessed for a step, so that it pays; where guesses come from, and what steps cost."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Final, TypeVar, final

from ...steps.step import Floats
from ..requests.generation import GenerationJob
from ..requests.job import Job
from ..scheduler import StepShare

log = logging.getLogger(__name__)

T = TypeVar("T")

SIZES: Final = (2, 4, 8, 16)  # tokens of a step with guesses: few sizes, as each is traced
LONGEST: Final = SIZES[-1]
GAIN: Final = 1.03  # the least gain that is worth it

KEPT: Final = 5  # the fastest of the latest steps of a size counts: others share the processor
STALE: Final = 256  # steps after which a time counts less, as the history and the machine's load have changed
FADED: Final = 0.8  # how much less, for as many further steps as FADING says
FADING: Final = 64
BOLD: Final = 0.9  # of what is expected of a size by others: so that it is tried
HOPED: Final = 0.05  # of a step: what a further token costs at least, where it is not measured
FIRST: Final = 4  # tokens of the first try: many kernels take as many columns at once


class GuessTracker(ABC):
    """How likely guesses of one answer's next tokens are right."""

    @abstractmethod
    def hope(self) -> float:
        """The probability that the next guess is right, if those before it are; 0: there is none."""

    @abstractmethod
    def learn(self, token: int) -> None:
        """Take the answer's next token."""

    def verified(self, guessed: int, accepted: int) -> None:
        """Take note of how many guesses of a step were right."""


class GuessSource(ABC):
    @abstractmethod
    def guesses(self, ids: Sequence[int]) -> GuessTracker:
        """The guesses of an answer after these tokens: the prompt, and the answer so far."""

    @abstractmethod
    def guess(self, jobs: Sequence[GenerationJob], counts: Sequence[int]) -> list[list[int]]:
        """Up to so many next tokens of each job."""

    def note(self, job: GenerationJob, count: int, rows: Floats) -> None:
        """Take the vectors that the model kept of a job's next tokens, (count, width); a step has computed them."""

    def seconds(self, counts: Sequence[int]) -> float:
        """How long it takes to guess so many tokens of each job; 0: it is not worth to be counted, or not known yet."""
        return 0.0

    def close(self) -> None:
        """Free what the source holds."""


@dataclass(eq=False)
class _Times:
    latest: deque[float] = field(default_factory=lambda: deque[float](maxlen=KEPT))
    at: int = 0


@final
class StepTimes:
    """The seconds of steps by their number of tokens, as measured lately.

    A time that was measured long ago counts as shorter than it was, so that it is measured again.
    """

    def __init__(self) -> None:
        self._times: dict[int, _Times] = {}
        self._steps = 0

    def note(self, tokens: int, seconds: float) -> None:
        self.age()
        times = self._times.setdefault(tokens, _Times())
        if self._steps - times.at > STALE:
            times.latest.clear()
        times.latest.append(seconds)
        times.at = self._steps

    def age(self) -> None:
        """Let a step pass that is not measured."""
        self._steps += 1

    def known(self, tokens: int) -> float | None:
        """The seconds of steps of this size; None if there are too few of them. A first one may have been traced."""
        times = self._times.get(tokens)
        if times is None or len(times.latest) < 2:
            return None
        return float(min(times.latest) * FADED ** (max(0, self._steps - times.at - STALE) // FADING))

    def seconds(self, tokens: int, base: int) -> float | None:
        """The seconds of steps of this size, if need be expected of others; None if they should not be tried yet.

        The steps of `base` tokens are known. More tokens never count as faster: the machine was faster then.
        """
        known, least = self.known(tokens), self.known(base)
        if least is None:
            return known
        if known is not None:
            return max(known, least)
        measured = [(abs(n - tokens), n) for n in self._times if n > base and self.known(n) is not None]
        if not measured:
            return least * (1 + HOPED * (tokens - base)) if tokens <= max(FIRST, 2 * base) else None
        nearest = min(measured)[1]
        each = ((self.known(nearest) or least) - least) / (nearest - base)
        return BOLD * (least + max(each, HOPED * least) * (tokens - base))


@final
class Speculation:
    """Adds guesses to the steps of a runner where more tokens a second are expected of it.

    The source says how likely its guesses are, and the pace what they cost; with many answers at once, or where few
    guesses are right, nothing is added.
    """

    def __init__(self, source: GuessSource, pace: StepTimes | None = None) -> None:
        self.source, self.pace = source, pace or StepTimes()
        self._broken = False

    def begin(self, job: Job) -> None:
        if isinstance(job, GenerationJob) and job.options.speculate and not self._broken:
            job.guesses = self.source.guesses(job.known_ids)

    def extended(self, shares: list[StepShare], context: int, room: int) -> list[StepShare]:
        """The shares with guesses behind their tokens; as they are, where that does not pay or a prompt is among them.

        context   tokens of a sequence
        room      tokens of a step
        """
        # A prompt may have a share of one token too, where the next ones must not be cut: nothing goes in between.
        jobs = [job for share in shares if isinstance(job := share.job, GenerationJob) and _is_whole(share)]
        if self._broken or not jobs or len(jobs) < len(shares):
            return shares
        counts = self._counts(jobs, [job.guessable(context) for job in jobs], min(room, LONGEST))
        if not any(counts):
            return shares
        found = self._tried(partial(self.source.guess, jobs, counts))
        if found is None:
            return shares
        for job, guess in zip(jobs, found, strict=True):
            job.propose(guess)
        return [StepShare(job, job.pending) for job in jobs]

    def note(self, shares: Sequence[StepShare], begun: float, rows: Floats) -> None:
        """Take note of how long a step took, which began at this time of the clock, and of the vectors that it kept."""
        if all(isinstance(share.job, GenerationJob) and _is_whole(share) for share in shares):
            self.pace.note(sum(share.count for share in shares), perf_counter() - begun)
        if len(rows) and not self._broken:
            self._tried(partial(self._hand_out, shares, rows))

    def _hand_out(self, shares: Sequence[StepShare], rows: Floats) -> None:
        for share, end in zip(shares, accumulate(share.count for share in shares), strict=True):
            if isinstance(job := share.job, GenerationJob) and job.guesses is not None:
                self.source.note(job, share.count, rows[end - share.count : end])

    def _tried(self, work: Callable[[], T]) -> T | None:
        """The result of the source's work; None if it fails, as it then always will: answers need no guesses."""
        try:
            return work()
        except BaseException:
            self._broken = True
            log.exception("guessing failed: answers go on with a token a step")
            return None

    def _counts(self, jobs: Sequence[GenerationJob], most: Sequence[int], room: int) -> list[int]:
        """How many tokens to guess of each job, in a step of up to `room` tokens."""
        alone, pending = len(jobs), sum(job.pending for job in jobs)
        hopes = [0.0 if job.guesses is None else job.guesses.hope() for job in jobs]
        least = self.pace.known(alone) if pending < room and any(hopes) else None
        if least is None:  # first measure steps without guesses
            return [0] * alone
        bare = pending if pending == alone else next(size for size in SIZES if size >= pending)
        best, chosen = GAIN * alone / (self.pace.seconds(bare, alone) or least), [0] * alone
        chances, counts, expected = list(hopes), [0] * alone, float(alone)
        for size in range(pending + 1, room + 1):
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


def _is_whole(share: StepShare) -> bool:
    """Whether a share has all that a job at its last token waits for."""
    return share.count == share.job.pending and share.job.at_last_token
