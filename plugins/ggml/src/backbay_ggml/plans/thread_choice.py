"""How many threads a graph runs on: fewer, while other processes keep the cores busy.

ggml's threads meet after every op. If the system runs another process in place of one of them, the others wait, and a
step can take 50 times as long. A single thread waits for nobody.
"""

from __future__ import annotations

from math import inf
from typing import final

SHARE = 0.03  # of the time goes to tries of other counts
EARLY_SHARE = 0.25  # of the time goes to the first try of more threads again
LESS = 1 / 3  # of the share before goes to each next one
FIRST = 0.02  # seconds that the first tries may take
MOST_DEBT = 0.2  # seconds that a try may take more than its share, to be made up for before the next
TRY = 8  # runs in a row
SETTLING = 6  # runs at most that do not count after a change, while threads wake and find their cores
ENOUGH = 3  # runs that tell a mean
SLOW = 2.0  # times what is expected
WEIGHT = 0.05  # of a new time in the mean
OUTLIER = 3.0  # a time counts at most as so many means: a single interruption changes nothing
BETTER = 0.95  # of the present mean: the mean of a count that is chosen in its place


@final
class ThreadCountChooser:
    """The choice for graphs of one kind, from the times of their runs: all threads, half of them, and so on to one.

    Fewer threads are tried once, and chosen when the mean time on more threads grows beyond their time. More threads
    are tried again and again: soon, as the disturbance may have been short, then less and less often, until tries take
    a small share of the time.
    """

    def __init__(self, most: int) -> None:
        self._counts = [most]
        while self._counts[-1] > 1:
            self._counts.append(self._counts[-1] // 2)
        self._means = [0.0] * len(self._counts)
        self._samples = [0] * len(self._counts)
        self._best = self._running = 0  # positions in the list of counts
        self._left, self._spent = 0, 0.0  # runs until the try ends, and seconds that it took so far
        self._work = inf  # the least processor time of a run on the chosen count, in the calling thread
        self._settling = 1
        self._credit = FIRST  # seconds that tries may cost
        self._share = EARLY_SHARE  # of the time, that goes to tries of more threads

    def next(self) -> int:
        if not self._left and not self._is_settled():
            tried = self._to_try()
            if tried is not None:
                self._move(tried)
                self._left, self._samples[tried], self._spent = TRY, 0, 0.0
        return self._counts[self._running]

    def learn(self, seconds: float, work: float) -> None:
        """The time of that run, and the processor time that the calling thread spent on it."""
        if self._running != self._best:
            cost = max(0.0, seconds - self._means[self._best])
            self._credit = max(self._credit - cost, -max(MOST_DEBT, self._budget()))
        else:
            self._work = min(self._work, work)
            if not self._is_settled():
                self._credit += (self._share if self._best else SHARE) * seconds if self._costs() else 0.0
        if self._settling:
            self._settling = self._settling - 1 if seconds > SLOW * self._means[self._best] else 0
        else:
            self._count(seconds)
            self._left = max(0, self._left - 1)
        if self._left:
            self._spent += seconds
            if self._spent <= self._budget() and not self._has_won():
                return
            if not self._samples[self._running]:
                self._means[self._running] = seconds
            self._left = 0
        self._choose()
        if self._running < self._best:
            self._share = max(SHARE, LESS * self._share)
        if self._running != self._best:
            self._move(self._best)

    def _is_settled(self) -> bool:
        """Whether all threads are the choice, and fewer were tried: so nothing is to be tried. Most runs find this."""
        return self._best == 0 and (len(self._counts) == 1 or self._samples[1] > 0)

    def _has_won(self) -> bool:
        is_known = self._samples[self._running] >= ENOUGH
        return self._running < self._best and is_known and self._is_better(self._running)

    def _is_better(self, index: int) -> bool:
        return self._means[index] < BETTER * self._means[self._best]

    def _budget(self) -> float:
        """The seconds after which a try ends at the next run."""
        return max(FIRST, TRY * self._means[self._best])

    def _count(self, seconds: float) -> None:
        index = self._running
        mean, samples = self._means[index], self._samples[index]
        counted = min(seconds, OUTLIER * mean) if samples >= TRY else seconds
        self._means[index] = mean + max(WEIGHT, 1 / (samples + 1)) * (counted - mean)
        self._samples[index] += 1

    def _to_try(self) -> int | None:
        return next((index for index, seconds in self._costs().items() if seconds <= self._credit), None)

    def _costs(self) -> dict[int, float]:
        """The seconds that a try of fewer threads, or of more, is expected to take; fewer are tried once."""
        best, costs = self._best, dict[int, float]()
        fewer = best + 1
        if fewer < len(self._counts) and not self._samples[fewer]:
            if self._waits():
                costs[fewer] = 0.0  # the processor time is mostly that of waiting threads, and tells nothing
            elif self._samples[best] >= ENOUGH:
                costs[fewer] = TRY * self._work * self._counts[best] / self._counts[fewer]
        if best:
            costs[best - 1] = min(self._means[best - 1], self._budget())
        return costs

    def _waits(self) -> bool:
        """Whether the calling thread mostly waits, for a core or for threads that wait for one."""
        return self._samples[self._best] > 0 and self._means[self._best] > SLOW * self._work

    def _choose(self) -> None:
        for other in (self._best - 1, self._best + 1):
            if 0 <= other < len(self._counts) and self._samples[other] > 0 and self._is_better(other):
                if other < self._best:
                    self._share = EARLY_SHARE
                self._best, self._work, self._credit = other, inf, min(self._credit, FIRST)
                return

    def _move(self, index: int) -> None:
        self._running, self._settling = index, SETTLING
