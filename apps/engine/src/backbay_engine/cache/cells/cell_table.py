"""The bookkeeping of cells: which cell holds which position of which sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from backbay import CacheFullError

from ...steps.step import Ints, Step

FEW = 16  # tokens
LAZY = 32  # a sequence's cells behind its window are freed in groups of this many, unless room is needed


@dataclass(slots=True)
class TokenRun:
    """Adjacent tokens of a step: of one sequence, at consecutive positions."""

    sequence: int
    row: int  # of the first token, in the step
    count: int
    position: int  # of the first token, in the sequence


def token_runs(step: Step) -> list[TokenRun]:
    """The runs of a step: it is cut where the sequence changes or a position is not the next one."""
    sequences, positions, size = step.sequences, step.positions, step.size
    if size == 1:
        return [TokenRun(int(sequences[0]), 0, 1, int(positions[0]))]
    if size <= FEW:
        cuts = _cuts_of_few(sequences.tolist(), positions.tolist())
    else:
        goes_on = (sequences[1:] == sequences[:-1]) & (positions[1:] == positions[:-1] + 1)
        cuts = (np.flatnonzero(~goes_on) + 1).tolist()
    return [
        TokenRun(int(sequences[low]), low, high - low, int(positions[low]))
        for low, high in pairwise([0, *cuts, size] if size else [])
    ]


def _cuts_of_few(sequences: list[int], positions: list[int]) -> list[int]:
    """Where a token does not follow the one before it. For a few tokens, Python is faster than NumPy."""
    return [
        n
        for n in range(1, len(sequences))
        if sequences[n] != sequences[n - 1] or positions[n] != positions[n - 1] + 1
    ]


class CellTable:
    """Cells, and the sequences in them; a sequence holds the positions [begin, end), each in a cell.

    Several sequences may share a cell, at the same position. The `version` of a sequence changes when its cells move,
    or its end is cut: masks derived from it must then be made anew.
    """

    def __init__(self, sequences: int, capacity: int, count: int) -> None:
        self.count, self.capacity = count, capacity
        self.free = count
        self.owners: NDArray[np.int32] = np.zeros(count, np.int32)
        self.table: Ints = np.zeros((sequences, capacity), np.int32)  # the cell of each position
        self.begin, self.end, self.version = [0] * sequences, [0] * sequences, [0] * sequences
        self._low, self._high = [0] * sequences, [-1] * sequences  # bounds of a sequence's cells
        self._hint = 0  # no cell before it is free

    def of(self, sequence: int, begin: int = 0, end: int | None = None) -> Ints:
        """The cells of a sequence's positions in [begin, end) that it holds."""
        low, high = max(begin, self.begin[sequence]), self.end[sequence]
        return self.table[sequence, low : high if end is None else max(low, min(end, high))]

    def extent(self, sequences: Sequence[int]) -> tuple[int, int]:
        """The range [low, high) of cells that sequences lie in; (0, 0) if they hold none."""
        low, high = self.count, -1
        for n in sequences:
            if self.end[n] > self.begin[n]:
                low, high = min(low, self._low[n]), max(high, self._high[n])
        return (low, high + 1) if high >= 0 else (0, 0)

    def lowest_free(self, n: int) -> Ints:
        """The first n free cells; the caller knows that there are n."""
        start, width = self._hint, max(64, 2 * n)
        if n == 1 and start < self.count and not self.owners[start]:
            return np.array([start], np.int32)
        if start + n <= self.count and not self.owners[start : start + n].any():
            return np.arange(start, start + n, dtype=np.int32)
        found: list[NDArray[np.int64]] = []
        while not found or n > 0:
            part = (self.owners[start : start + width] == 0).nonzero()[0][:n]
            found.append(part + start)
            n -= len(part)
            start, width = start + width, 2 * width
        return (found[0] if len(found) == 1 else np.concatenate(found)).astype(np.int32)

    def free_from(self, start: int) -> Ints:
        """All free cells at `start` or later."""
        return (np.flatnonzero(self.owners[start:] == 0) + start).astype(np.int32)

    def forget_passed(self, keep: int | None, runs: Sequence[TokenRun], need: int) -> None:
        """Free cells of positions that are `keep` behind the ends, or CacheFullError, and then none is freed."""
        if keep is None:  # there is a cell for each position
            return
        passed = [max(end - keep, 0) for end in self.end]
        every = self.free < need
        if every:
            room = self._room_without(passed)
            for run in runs:
                if room < run.count:
                    raise CacheFullError(run.sequence, run.count, room)
                room -= run.count
        for sequence in range(len(self.end)) if every else {run.sequence for run in runs}:
            if every or passed[sequence] - self.begin[sequence] >= LAZY:
                self.drop(sequence, passed[sequence])

    def _room_without(self, passed: Sequence[int]) -> int:
        """The number of free cells, if each sequence dropped the positions before these."""
        owners = self.owners.copy()
        for sequence, position in enumerate(passed):
            owners[self.of(sequence, 0, position)] -= 1
        return int(np.count_nonzero(owners == 0))

    def extend(self, runs: Sequence[TokenRun], taken: Ints) -> None:
        """Give free cells, in ascending order, to the next positions of sequences."""
        if not runs:
            return
        self.owners[taken] = 1
        self.free -= len(taken)
        self._hint = max(self._hint, int(taken[-1]) + 1)
        for run in runs:
            sequence, row, end = run.sequence, run.row, run.position + run.count
            if run.count == 1:
                low = high = int(taken[row])
                self.table[sequence, run.position] = low
            else:
                part = taken[row : row + run.count]
                low, high = int(part[0]), int(part[-1])  # they ascend
                self.table[sequence, run.position : end] = part
            if self.end[sequence] == self.begin[sequence]:
                self._low[sequence], self._high[sequence] = low, high
            else:
                self._low[sequence] = min(low, self._low[sequence])
                self._high[sequence] = max(high, self._high[sequence])
            self.end[sequence] = end

    def drop(self, sequence: int, position: int) -> None:
        """Drop the positions before one."""
        begin = self.begin[sequence]
        if position <= begin:
            return
        gone = self.of(sequence, begin, position)
        self.begin[sequence] = min(position, self.end[sequence])
        self._release(gone)
        if len(gone) and (gone.min() <= self._low[sequence] or gone.max() >= self._high[sequence]):
            self.measure(sequence)

    def cut(self, sequence: int, position: int) -> None:
        """Drop a position and all later ones; the sequence then continues there."""
        gone = self.of(sequence, position).copy()
        self.end[sequence] = position
        self.begin[sequence] = min(self.begin[sequence], position)
        self._release(gone)
        self._changed(sequence)

    def replace(self, sequence: int, begin: int, cells: Ints, first: int, old: Ints) -> None:
        """Let a sequence hold `cells` from position `first` on, with `begin` as its first position.

        `old` are the cells that it no longer holds; new cells must be free.
        """
        fresh = cells[self.owners[cells] == 0]
        self.owners[fresh] = 1
        self.free -= len(fresh)
        self.table[sequence, first : first + len(cells)] = cells
        self.begin[sequence], self.end[sequence] = begin, first + len(cells)
        self._release(old)
        self._changed(sequence)

    def share(self, source: int, target: int, length: int) -> None:
        """Let an empty sequence share the first `length` positions of another one."""
        shared = self.of(source, 0, length)
        self.owners[shared] += 1
        begin = min(self.begin[source], length)
        self.table[target, begin:length] = shared
        self.begin[target], self.end[target] = begin, length
        self._changed(target)

    def move(self, sources: Ints, targets: Ints) -> None:
        """The data of `sources` is now in `targets`, which were free."""
        where = np.arange(self.count, dtype=np.int32)
        where[sources] = targets
        self.owners[targets] = self.owners[sources]
        self.owners[sources] = 0
        self._hint = 0
        for sequence in range(len(self.begin)):
            held = self.of(sequence)
            moved = where[held]
            if not np.array_equal(moved, held):
                held[:] = moved
                self._changed(sequence)

    def measure(self, sequence: int) -> None:
        """Compute the bounds of a sequence's cells again."""
        held = self.of(sequence)
        if len(held):
            self._low[sequence], self._high[sequence] = int(held.min()), int(held.max())

    def _changed(self, sequence: int) -> None:
        self.version[sequence] += 1
        self.measure(sequence)

    def _release(self, cells: Ints) -> None:
        if not len(cells):
            return
        self.owners[cells] -= 1
        freed = cells[self.owners[cells] == 0]
        if len(freed):
            self.free += len(freed)
            self._hint = min(self._hint, int(freed.min()))
