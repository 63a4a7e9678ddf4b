"""A search by Hypothesis: it draws examples, keeps those that fail for the next run, and makes what fails small."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest import SkipTest

from hypothesis import Phase, Verbosity, find, settings, target
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase, choices_to_bytes
from hypothesis.errors import Flaky, NoSuchExample
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

from backbay.plugin import CachedValue

from .choices import Source

Example = Callable[[Source, bool], bool]
"""Tries what a source draws, and whether Hypothesis has drawn it anew; True if it fails, and a smaller one should be
sought."""


class UniformChoiceProvider(HypothesisProvider):
    """Choices of equal chance, as `flag(one_in)` promises, but for those that a new example takes by its turn."""

    wanted: int | None = None

    def draw_integer(self, min_value: Any = None, max_value: Any = None, **others: Any) -> int:
        wanted, UniformChoiceProvider.wanted = UniformChoiceProvider.wanted, None
        assert self._random is not None
        return self._random.randint(min_value, max_value) if wanted is None else wanted


NAME = "backbay"  # of this way of drawing, as Hypothesis' settings take it
AVAILABLE_PROVIDERS[NAME] = f"{__name__}.{UniformChoiceProvider.__name__}"


class ExampleStore(ExampleDatabase):
    """The smallest example that failed, in the cache folder; what Hypothesis keeps of its way there is not needed."""

    KEY = b"failing"

    def __init__(self, value: CachedValue) -> None:
        super().__init__()
        self.value = value

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return (bytes.fromhex(text) for text in self.value.recall() or ()) if key == self.KEY else ()

    def save(self, key: bytes, value: bytes) -> None:
        if key == self.KEY:
            self.value.keep([value.hex()])

    def delete(self, key: bytes, value: bytes) -> None:
        if value in self.fetch(key):
            self.value.forget()


class OutOfTimeError(BaseException):
    """Ends a search, also within code that catches all errors."""


def seconds_of_this_thread() -> float:
    """A clock without the time for which this thread was ready to run, but got no processor."""
    waited = 0
    with suppress(OSError, ValueError, IndexError):  # the system does not tell
        waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.monotonic() - waited / 1e9


def quiet(**more: Any) -> settings:
    return settings(deadline=None, print_blob=False, verbosity=Verbosity.quiet, **more)


def find_worst(
    example: Callable[[Source], Mapping[str, float] | None], count: int, seed: str, seconds: float
) -> None:
    """Try examples, and drive each of their scores upwards, until one has none, or `count` or the time is over."""
    deadline, left = time.monotonic() + seconds, count

    def tried(data: Any) -> bool:
        nonlocal left
        if not left or (left < count and time.monotonic() > deadline):
            raise OutOfTimeError
        left -= 1
        scores = example(lambda n, by_turn: int(data.conjecture_data.draw_integer(0, n - 1)))
        if scores is None:
            raise OutOfTimeError
        for label, score in scores.items():
            target(score, label=label)
        return False

    how = quiet(max_examples=count, phases=[Phase.generate, Phase.target], database=None)
    with suppress(NoSuchExample, OutOfTimeError, Flaky):
        find(st.data(), tried, settings=how, random=Random(seed))


def find_failure(
    example: Example,
    count: int,
    seed: str,
    *,
    kept: CachedValue | None = None,
    again: bool = True,
    seconds: float = 4.0,
) -> None:
    """Try examples until one fails, `count` of them drawn anew; then smaller ones for so many seconds.

    A busy machine finds as small an example: seconds in which this thread waits for a processor do not count.
    kept    what failed in the last run; what fails now takes its place
    again   whether what is kept is tried first
    """
    deadline = 0.0
    best: list[int] = []

    def tried(data: Any) -> bool:
        nonlocal deadline, best
        if deadline and seconds_of_this_thread() > deadline:
            raise OutOfTimeError
        choices: list[int] = []

        def source(n: int, by_turn: int | None) -> int:
            UniformChoiceProvider.wanted = (
                by_turn  # not drawn from a strategy, whose span would cost more than the choice
            )
            choices.append(int(data.conjecture_data.draw_integer(0, n - 1)))
            return choices[-1]

        source(2, 1)
        new = UniformChoiceProvider.wanted is None  # a choice that is made again asks nobody
        if not choices[0]:  # the simplest example, which Hypothesis tries before all others
            return False
        fails = example(source, new)
        if fails:
            deadline = deadline or seconds_of_this_thread() + seconds
            best = min(best or choices, choices, key=lambda some: (len(some), some))
        return fails

    how = quiet(backend=NAME, max_examples=count + 1)
    phases = [Phase.generate, Phase.shrink] if seconds > 0 else [Phase.generate]
    with suppress(NoSuchExample, OutOfTimeError, Flaky):  # nothing fails, or not each time
        if kept is not None and again:  # a seed would let Hypothesis use no database
            reused = settings(how, phases=[Phase.reuse], database=ExampleStore(kept))
            with suppress(NoSuchExample, SkipTest):  # nothing is kept, or it passes now
                find(st.data(), tried, settings=reused, database_key=ExampleStore.KEY)
        if not best:
            drawn = settings(how, phases=phases, database=None)
            find(st.data(), tried, settings=drawn, random=Random(seed))
    if kept is not None and best:
        ExampleStore(kept).save(ExampleStore.KEY, choices_to_bytes(best))
