"""A search by Hypothesis: it draws examples, keeps those that fail for the next run, and makes what fails small."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

from hypothesis import Phase, Verbosity, find, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Flaky, NoSuchExample
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

from ..draw.choices import Source

Example = Callable[[Source, bool], bool]
"""Tries what a source draws, and whether Hypothesis has drawn it anew; True if it fails, and a smaller one should be
sought."""


class ByTurn(HypothesisProvider):
    """Hypothesis' own choices, but for those that a new example takes by its turn."""

    wanted: int | None = None

    def draw_integer(self, min_value: int | None = None, max_value: int | None = None, **others: Any) -> int:
        if ByTurn.wanted is None:
            return super().draw_integer(min_value, max_value, **others)
        wanted, ByTurn.wanted = ByTurn.wanted, None
        return wanted


NAME = "backbay"  # of this way of drawing, as Hypothesis' settings take it
AVAILABLE_PROVIDERS[NAME] = ByTurn


class OutOfTimeError(BaseException):
    """Ends a search, also within code that catches all errors."""


@cache
def _below(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, n - 1)


def search(
    example: Example, count: int, seed: str, *, kept_in: str = "", key: str = "", seconds: float = 4.0
) -> None:
    """Try examples until one fails, `count` of them drawn anew; then smaller ones for so many seconds.

    kept_in   a folder for examples that fail: those that it has under this key are tried first
    """
    deadline = 0.0

    def tried(draw: Callable[[st.SearchStrategy[int]], int]) -> bool:
        nonlocal deadline
        if deadline and time.monotonic() > deadline:
            raise OutOfTimeError

        def source(n: int, by_turn: int | None) -> int:
            ByTurn.wanted = by_turn
            chosen = draw(_below(n))
            ByTurn.wanted = None  # a choice that is made again asks nobody
            return chosen

        ByTurn.wanted = 1
        new = bool(draw(_below(2)))
        asked, ByTurn.wanted = ByTurn.wanted is None, None
        if not new:  # the simplest example, which Hypothesis tries before all others
            return False
        fails = example(source, asked)
        if fails and not deadline:
            deadline = time.monotonic() + seconds
        return fails

    how = settings(
        max_examples=count + 1,
        backend=NAME,
        database=DirectoryBasedExampleDatabase(kept_in) if kept_in else None,
        phases=[Phase.reuse, Phase.generate, Phase.shrink] if seconds > 0 else [Phase.generate],
        deadline=None,
        print_blob=False,
        verbosity=Verbosity.quiet,
    )
    with suppress(NoSuchExample, OutOfTimeError, Flaky):  # nothing fails, or not each time
        find(st.composite(tried)(), bool, settings=how, random=Random(seed), database_key=key.encode())
