"""Attention masks: the cells that each token of a step sees. Rows are updated from step to step if possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backbay import DType

from ...steps.step import Ints
from .cell_table import CellTable, TokenRun

SEEN, HIDDEN = 0.0, -np.inf
Rows: TypeAlias = NDArray[Any]
NUMPY: dict[DType, np.dtype[Any]] = {DType.F32: np.dtype(np.float32), DType.F16: np.dtype(np.float16)}


@dataclass(frozen=True)
class AttentionWindow:
    """How far back a token sees: a window of positions, itself included, or to the begin of its chunk."""

    window: int | None = None
    chunk: int | None = None

    @property
    def reach(self) -> int | None:
        """The most positions that a token sees; None: all earlier ones."""
        limits = [n for n in (self.window, self.chunk) if n is not None]
        return min(limits) if limits else None

    def first(self, position: int) -> int:
        low = 0 if self.window is None else max(0, position - self.window + 1)
        return low if self.chunk is None else max(low, position - position % self.chunk)

    def firsts(self, positions: Ints) -> Ints:
        low = positions * 0 if self.window is None else np.maximum(0, positions - (self.window - 1))
        return low if self.chunk is None else np.maximum(low, positions - positions % self.chunk)


class MaskRows:
    """A row for each token, a column for each cell from `first` on.

    The row of a token that is alone in its run is updated from step to step, in the same array.
    """

    def __init__(self, visibility: AttentionWindow, first: int) -> None:
        self.visibility, self.first = visibility, first
        self._known: dict[int, tuple[int, int, int]] = {}  # by row: sequence, version and position

    def fill(self, array: Rows, cells: CellTable, runs: Sequence[TokenRun]) -> None:
        """Update all rows, in the array of the step before."""
        for run in runs:
            if run.count == 1:
                self._fill_one(array[run.row], cells, run)
            else:
                self._fill_many(array[run.row : run.row + run.count], cells, run)

    def fill_anew(self, array: Rows, cells: CellTable, runs: Sequence[TokenRun], spans: Ints | None) -> None:
        """Fill an array of unknown content. Padding rows hide all cells.

        With `spans`, the tokens of a span also see later tokens of the span.
        """
        self._known.clear()
        array[sum(run.count for run in runs) :] = HIDDEN
        self.fill(array, cells, runs)
        if spans is not None:
            self._open_spans(array, cells, runs, spans)

    def _fill_one(self, row: Rows, cells: CellTable, run: TokenRun) -> None:
        """Reuse the last row: reveal new cells, hide those that left the window."""
        sequence, position, version = run.sequence, run.position, cells.version[run.sequence]
        begin = low = self.visibility.first(position)
        known, table = self._known.get(run.row), cells.table[sequence]
        if known is not None and known[:2] == (sequence, version):
            before = known[2]
            hidden = self.visibility.first(before)
            if hidden < low:
                row[table[hidden : min(low, before + 1)] - self.first] = HIDDEN
            begin = max(low, before + 1)
        else:
            row[:] = HIDDEN
        if begin == position:
            row[table[position] - self.first] = SEEN
        elif begin < position:
            row[table[begin : position + 1] - self.first] = SEEN
        self._known[run.row] = (sequence, version, position)

    def _fill_many(self, block: Rows, cells: CellTable, run: TokenRun) -> None:
        """The cells that all tokens see are one row, repeated; then follow the cells that differ."""
        low, table = self.visibility.first(run.position), cells.table[run.sequence]
        if self.visibility.reach is None:
            block[0] = HIDDEN
            block[0, table[: run.position] - self.first] = SEEN
            block[1:] = block[0]
            low = run.position
        else:
            block[:] = HIDDEN
        end = run.position + run.count
        held, asking = np.arange(low, end, dtype=np.int32), np.arange(run.position, end, dtype=np.int32)
        seen = held <= asking[:, None]
        if self.visibility.reach is not None:
            seen &= held >= self.visibility.firsts(asking)[:, None]
        kind = block.dtype.type
        block[:, _columns(table[low:end] - self.first)] = np.where(seen, kind(SEEN), kind(HIDDEN))
        for row in range(run.row, run.row + run.count):
            self._known.pop(row, None)

    def _open_spans(self, array: Rows, cells: CellTable, runs: Sequence[TokenRun], spans: Ints) -> None:
        for run in runs:
            for other in runs:
                if other.sequence != run.sequence:
                    continue
                mine, theirs = (spans[r.row : r.row + r.count] for r in (run, other))
                seen = (mine[:, None] == theirs) & (mine[:, None] >= 0)
                tokens, places = np.nonzero(seen)
                held = cells.table[run.sequence, other.position : other.position + other.count] - self.first
                array[run.row + tokens, held[places]] = SEEN


def _columns(cells: Ints) -> slice | Ints:
    """Adjacent columns as a slice, which NumPy handles faster."""
    n = len(cells)
    if n and int(cells[-1]) - int(cells[0]) == n - 1 and bool((cells[1:] - cells[:-1] == 1).all()):
        return slice(int(cells[0]), int(cells[0]) + n)
    return cells
