"""Where choices come from: a search by Hypothesis, a recorded list, or a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

SEEDS = 1 << 16
"""The number of values of a choice that changes only data: a seed, or a kind of numbers."""

Source = Callable[[int, int | None], int]
"""Chooses an integer in [0, n); the second argument, if there is one, is what a new call takes by its turn."""


def replayed(choices: Iterable[int]) -> Source:
    """The recorded choices, then 0."""
    left = iter(choices)
    return lambda n, by_turn: min(next(left, 0), n - 1)


def following(source: Source, choices: Iterable[int]) -> Source:
    """The source of a search, which makes the recorded choices as by turn."""
    recorded = replayed(choices)
    return lambda n, by_turn: source(n, recorded(n, None))


def shaped(source: Source, structure: str, mode: int) -> Source:
    """The source of a call that takes all but its mode, which is the first choice, and its data from a structure."""
    chance, first = random.Random(structure), iter([mode])

    def choose(n: int, by_turn: int | None) -> int:
        if n == SEEDS:
            return source(n, by_turn)
        chosen = int(n * chance.random()) if by_turn is None else by_turn
        return source(n, next(first, chosen))

    return choose


def seeded(seed: str) -> Source:
    """Choices that follow from a seed."""
    chance = random.Random(seed)
    return lambda n, by_turn: chance.randrange(n) if by_turn is None else by_turn
