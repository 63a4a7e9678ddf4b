"""From the tokens of a window to its segments, as transformers cuts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from .marks import FRAMES, TranscriptMarks

STEP = 0.02  # seconds between times


class WindowSegment(NamedTuple):
    """Tokens of a window, and their times: steps from its beginning."""

    begin: int
    end: int
    tokens: Sequence[int]


def window_segments(
    tokens: Sequence[int], marks: TranscriptMarks, frames: int
) -> tuple[list[WindowSegment], int]:
    """The segments of a window of so many frames, without the mark of the end, and the frame where the next one begins.

    A pair of times ends a segment. What comes after the last pair is cut in the middle: the next window begins there,
    unless a single time at the end says that nobody speaks after it.
    """
    first = marks.first_time
    times = [token >= first for token in tokens]
    cuts = [at + 1 for at, pair in enumerate(pairwise(times)) if all(pair)]
    ends_alone = times[-2:] == [False, True]
    if not cuts:
        last = next((token - first for token in reversed(tokens) if token >= first), 0)
        return [WindowSegment(0, last or frames // FRAMES, tokens)], frames
    cuts = [*cuts, len(tokens)] if ends_alone else cuts
    found = [WindowSegment(part[0] - first, part[-1] - first, part) for part in _parts(tokens, cuts) if part]
    return found, frames if ends_alone else FRAMES * (tokens[cuts[-1] - 1] - first) or frames


def _parts(tokens: Sequence[int], cuts: Sequence[int]) -> Iterator[Sequence[int]]:
    return (tokens[begin:end] for begin, end in pairwise([0, *cuts]))
