"""Shrinking: from a failing list of choices to a smaller list that fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Choices = list[int]

OTHERS = 8
"""Other values of a choice that may lead to smaller extents: the first of a list of options need not be the smallest."""


@dataclass(frozen=True)
class FailingChoices:
    """Choices that fail, and the number of elements of the call that they draw; 0 if it is not known."""

    choices: Choices
    elements: int = 0


def shrink(
    choices: Sequence[int],
    fails: Callable[[Choices], FailingChoices | None],
    seconds: float = 4.0,
    elements: int = 0,
) -> Choices:
    """The smallest choices found within `seconds`.

    `fails` tries choices; if they fail in the same way, it returns the choices that were used, else None. A shorter
    list is smaller; of two equally long lists, the one with smaller numbers. Then calls with fewer elements are
    sought, whatever their choices; `elements` is the number of the first call.
    """
    deadline = time.monotonic() + seconds
    best = _improve(FailingChoices(list(choices), elements), fails, deadline, _simpler, _simplicity)
    if best.elements > 1:
        best = _improve(best, fails, deadline, _others, lambda found: (found.elements,))
    return best.choices


def _improve(
    best: FailingChoices,
    fails: Callable[[Choices], FailingChoices | None],
    deadline: float,
    candidates: Callable[[Choices], Iterator[Choices]],
    size: Callable[[FailingChoices], tuple[int, ...]],
) -> FailingChoices:
    """Take the first candidate that fails and is smaller, until none is."""
    improved = True
    while improved:
        improved = False
        for candidate in candidates(best.choices):
            if time.monotonic() > deadline:
                return best
            found = fails(candidate)
            if found is not None and size(found) < size(best):
                best, improved = found, True
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


def _others(choices: Choices) -> Iterator[Choices]:
    """Candidates that differ in one choice, or lack one."""
    for i, choice in enumerate(choices):
        for other in range(OTHERS):
            if other != choice:
                yield [*choices[:i], other, *choices[i + 1 :]]
        yield [*choices[:i], *choices[i + 1 :]]


def _simplicity(found: FailingChoices) -> tuple[int, ...]:
    return len(found.choices), sum(choice.bit_length() for choice in found.choices)
