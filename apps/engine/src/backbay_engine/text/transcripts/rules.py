"""The rules of Whisper's transcripts: which tokens may follow, by the logits and the tokens so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from .marks import TranscriptMarks


@final
@dataclass(frozen=True)
class TranscriptRules:
    """What transformers' processors of logits do: tokens that never come, or not first, and times in pairs.

    times   whether times may come; then one comes first, they come in pairs around text, and never fall
    """

    marks: TranscriptMarks
    times: bool

    def allowed(self, row: NDArray[np.float32], answer: Sequence[int]) -> NDArray[np.float32]:
        """The logits, (vocabulary,), with -inf for tokens that may not follow the tokens of an answer."""
        row = row.copy()
        row[list(self.marks.suppressed)] = -np.inf
        if not answer:
            row[list(self.marks.suppressed_first)] = -np.inf
        if self.times:
            self._keep_pairs(row, answer)
        return row

    def _keep_pairs(self, row: NDArray[np.float32], answer: Sequence[int]) -> None:
        marks, first = self.marks, self.marks.first_time
        row[marks.no_timestamps] = -np.inf
        times = [token for token in answer if token >= first]
        last_is_time = bool(answer) and answer[-1] >= first
        if last_is_time and (len(answer) < 2 or answer[-2] >= first):
            row[first:] = -np.inf  # text comes after a pair
        elif last_is_time:
            row[: marks.end] = -np.inf  # a pair is to be completed, or this is the end
            row[first : times[-1]] = -np.inf
        elif times:
            row[first : times[-1] + 1] = -np.inf
        if not answer:
            row[:first] = -np.inf
            if marks.latest_begin is not None:
                row[first + marks.latest_begin + 1 :] = -np.inf
        if _log_sum(row[first:]) > row[:first].max():
            row[:first] = -np.inf  # a time is more likely than any single token of text


def _log_sum(row: NDArray[np.float32]) -> float:
    """The logarithm of the sum of exponentials."""
    largest = float(row.max(initial=-np.inf))
    if not np.isfinite(largest):
        return largest
    return largest + float(np.log(np.exp((row - largest).astype(np.float64)).sum()))
