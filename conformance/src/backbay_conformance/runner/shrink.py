"""Shrinking: from a failing list of choices to a smaller list that fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

Choices = list[int]


def shrink(
    choices: Sequence[int], fails: Callable[[Choices], Choices | None], seconds: float = 4.0
) -> Choices:
    """The smallest choices found within `seconds`.

    `fails` tries choices; if they fail in the same way, it returns the choices that were used, else None. A shorter
    list is smaller; of two equally long lists, the one with smaller numbers.
    """
    best, deadline = list(choices), time.monotonic() + seconds
    improved = True
    while improved:
        improved = False
        for candidate in _simpler(best):
            if time.monotonic() > deadline:
                return best
            used = fails(candidate)
            if used is not None and _size(used) < _size(best):
                best, improved = used, True
                break
    return best


def _simpler(choices: Choices) -> Iterator[Choices]:
    """Candidates, the largest steps first: shorter lists, runs of zeros, then single smaller choices."""
    n = len(choices)
    for kept in (0, n // 4, n // 2, 3 * n // 4):
        if any(choices[kept:]):
            yield choices[:kept]
    for width in (8, 4, 2):
        for start in range(0, n, width):
            if sum(1 for choice in choices[start : start + width] if choice) > 1:
                yield [
                    *choices[:start],
                    *[0] * len(choices[start : start + width]),
                    *choices[start + width :],
                ]
    for i, choice in enumerate(choices):
        for smaller in dict.fromkeys((0, choice // 2, choice - 1)):
            if 0 <= smaller < choice:
                yield [*choices[:i], smaller, *choices[i + 1 :]]


def _size(choices: Choices) -> tuple[int, int]:
    return len(choices), sum(choice.bit_length() for choice in choices)
