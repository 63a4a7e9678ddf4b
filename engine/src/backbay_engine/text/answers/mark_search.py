"""Finding marks in a text that grows."""

from __future__ import annotations

from collections.abc import Sequence


def first_mark(text: str, marks: Sequence[str]) -> tuple[int, str]:
    """The place of the first mark in a text, and the mark; an empty one if there is none."""
    return min(((at, mark) for mark in marks if (at := text.find(mark)) >= 0), default=(-1, ""))


def possible_mark(text: str, marks: Sequence[str]) -> int:
    """The length of the text's end that may begin a mark."""
    lengths = range(min(max(map(len, marks)) - 1, len(text)), 0, -1)
    return next((length for length in lengths if any(mark.startswith(text[-length:]) for mark in marks)), 0)
