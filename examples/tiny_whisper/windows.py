"""Windows of sound, in which phrases are spoken, with silence between them and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import numpy as np
from numpy.typing import NDArray

from .speech import RATE, WORDS, Phrase, Sound, noisy

ROWS_A_SECOND = 50
LAST = 0.25  # of phrases after which a window is silent, though there is room


@dataclass(frozen=True)
class Window:
    """The sound of a window; the phrases in it, with the rows where each begins and ends.

    A phrase that the window cuts has no end, and comes last.
    """

    sound: Sound
    heard: list[tuple[tuple[str, ...], int, int | None]]

    def named(self, lengths: Mapping[str, float]) -> NDArray[np.int64]:
        """The word at each row, 1 + its number; 0 between phrases; -100 in a phrase that the window cuts.

        A word takes as much of its phrase as its length, spoken alone, of the lengths of all.
        """
        rows = np.zeros(ROWS_A_SECOND * len(self.sound) // RATE, np.int64)
        for words, begin, end in self.heard:
            if end is None:
                rows[begin:] = -100
                continue
            edges = np.cumsum([0.0, *(lengths[word] for word in words)])
            places = begin + np.round(edges / edges[-1] * (end - begin)).astype(int)
            for word, (first, last) in zip(words, pairwise(places), strict=True):
                rows[first:last] = 1 + WORDS.index(word)
        return rows


def draw_window(rng: Random, spoken: Sequence[Phrase], samples: int, *, cut: bool) -> Window:
    """Phrases one after the other; `cut` says whether the end of the window may cut the last one."""
    sound, heard = np.zeros(samples, np.float32), list[tuple[tuple[str, ...], int, int | None]]()
    silent = rng.random() < 0.04
    begin = int(rng.uniform(0, 0.8) * RATE)
    while not silent and begin < samples - RATE // 10:
        phrase = rng.choice(spoken)
        end = begin + len(phrase.sound)
        if end > samples and not (cut and heard):
            if heard:
                break
            begin = max(0, begin - (end - samples))
            end = begin + len(phrase.sound)
        level = rng.uniform(0.3, 1.0) / 32768
        sound[begin:end] += phrase.sound[: samples - begin] * np.float32(level)
        first, row = begin * ROWS_A_SECOND // RATE, -(-end * ROWS_A_SECOND // RATE)
        heard.append((phrase.words, first, row if end <= samples else None))
        if rng.random() < LAST:
            break
        begin = end + int(rng.uniform(0.35, 1.2) * RATE)
    return Window(_worn(rng, sound), heard)


def _worn(rng: Random, sound: Sound) -> Sound:
    """A sound at another level, mostly with some noise."""
    if rng.random() < 0.7:
        sound = noisy(sound, rng.uniform(3, 35), np.random.default_rng(rng.getrandbits(32)))
    return np.clip(sound * np.float32(10 ** rng.uniform(-1, 0)), -1, 1)
