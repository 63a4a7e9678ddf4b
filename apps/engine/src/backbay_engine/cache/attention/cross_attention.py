"""Caches in regions: rows that are written once, and that whole sequences see or do not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from backbay import Backend, Context, DType, Tensor

from ...steps.step import Ints, Step
from ..cells.cell_table import TokenRun
from ..cells.masks import HIDDEN, NUMPY, SEEN
from ..cells.storage import BoundCellCache, CellCache, CellPlan, rounded_up
from ..contract import CachePlan, CacheSizes, own_plan

NOTHING: Ints = np.zeros(0, np.int32)


@dataclass(frozen=True)
class VisibleRows:
    """Rows that a sequence sees, of a picture or of an encoder's text, and the position of the token from which on.

    visible  the first rows, which later tokens see; the others are padding
    """

    content: bytes
    position: int
    rows: int
    visible: int


@dataclass(frozen=True)
class PositionRun:
    """Consecutive positions that see the same ranges of cells, each from its first cell to before its end.

    after  whether the positions are after the first picture, if there are pictures
    """

    begin: int
    end: int
    cells: Sequence[tuple[int, int]]
    after: bool = True


@dataclass(frozen=True)
class CrossAttentionPlan(CellPlan):
    """A step's range of cells, and what each of its runs sees of them."""

    masked: bool
    seen: Sequence[tuple[TokenRun, Sequence[PositionRun]]]


class CrossAttentionCache(CellCache):
    """Regions of at most `length` rows, which several sequences may share."""

    _seen_before: ClassVar[bool]
    """Whether tokens before a region's position may have seen it, so that it goes only with all of them."""

    def __init__(self, length: int) -> None:
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        self.length = length

    def open_regions(self, backend: Backend, sizes: CacheSizes, regions: int) -> None:
        self._padding = backend.cache_config().cache_padding
        self._room = rounded_up(self.length, self._padding)
        self.open_store(backend, sizes, regions * self._room)
        self.regions = regions
        # by sequence, each with its region
        self._shown: list[list[tuple[VisibleRows, int]]] = [[] for _ in range(sizes.sequences)]
        self._expected: dict[int, int] = {}  # by sequence: rows that its next step puts

    def shown(self, sequence: int) -> list[VisibleRows]:
        return [shown for shown, _ in self._of(sequence)]

    def free_regions(self) -> list[int]:
        taken = {region for held in self._shown for _, region in held}
        return [region for region in range(self.regions) if region not in taken]

    @property
    def used(self) -> int:
        if not self.is_open:
            return 0
        return sum({region: shown.rows for held in self._shown for shown, region in held}.values())

    def _of(self, sequence: int) -> list[tuple[VisibleRows, int]]:
        self.check(sequence)
        return self._shown[sequence]

    def _before(self, sequence: int, position: int) -> list[tuple[VisibleRows, int]]:
        """What a sequence still sees if it is cut at a position."""
        held = self._of(sequence)
        if self._seen_before:
            return held if position > 0 else []
        return [(shown, region) for shown, region in held if shown.position < position]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.check(target)
        if source != target:
            self._expected.pop(target, None)
        self._shown[target] = [*self._before(source, length)]

    def removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        self.check(sequence)

        def remove() -> None:
            if end is None:
                self._expected.pop(sequence, None)
                self._shown[sequence] = self._before(sequence, begin)
                return
            self._shown[sequence] = [
                (shown if shown.position < begin else _moved(shown, end - begin), region)
                for shown, region in self._shown[sequence]
                if not begin <= shown.position < end
            ]

        return remove

    def range_of(self, region: int, rows: int) -> tuple[int, int]:
        """The cells of a region's first rows, from the first to before the end."""
        return region * self._room, region * self._room + rows

    def cells_of(self, region: int, rows: int) -> Ints:
        return np.arange(*self.range_of(region, rows), dtype=np.int32)

    def can_resume(self, sequence: int, position: int) -> bool:
        self.check(sequence)
        return position >= 0

    def wipe(self, sequence: int) -> None:
        others = {region for n, held in enumerate(self._shown) if n != sequence for _, region in held}
        for _, region in self._of(sequence):
            if region not in others:
                self.storage.wipe(self.cells_of(region, self._room))
        self.remove(sequence, 0)

    def planned(
        self, step: Step, seen: Sequence[tuple[TokenRun, Sequence[PositionRun]]], puts: Ints = NOTHING
    ) -> CrossAttentionPlan:
        ranges = [each for _, views in seen for view in views for each in view.cells]
        if not ranges:
            return CrossAttentionPlan(step, (0, 0, False, 0), puts, 0, 0, masked=False, seen=seen)
        first = min(low for low, _ in ranges)
        history = rounded_up(max(high for _, high in ranges) - first, self._padding)
        everything = [(first, first + history)]
        masked = any(not views or any(view.cells != everything for view in views) for _, views in seen)
        return CrossAttentionPlan(
            step, (first, history, masked, len(puts)), puts, first, history, masked, seen
        )

    def planned_whole(self, step: Step, puts: Ints = NOTHING) -> CrossAttentionPlan:
        cells = self.storage.cells
        return CrossAttentionPlan(step, (0, cells, True, len(puts)), puts, 0, cells, masked=True, seen=())


def _moved(shown: VisibleRows, gap: int) -> VisibleRows:
    return replace(shown, position=shown.position - gap)


class BoundCrossAttentionCache(BoundCellCache):
    _after: Tensor | None = None

    def __init__(
        self, cache: CrossAttentionCache, ctx: Context, plan: CrossAttentionPlan, *shape: int
    ) -> None:
        super().__init__(cache.storage, ctx, plan)
        self.present = self._host.zeros(DType.F32, *shape, plan.step.size)
        self.is_empty = plan.history == 0
        dtype, rows = self._storage.config.mask_dtype, self._storage.mask_rows(plan.step.size)
        self._masks = [self._host.empty(dtype, plan.history, rows)] if plan.masked else []

    def fill(self, plan: CachePlan) -> None:
        plan = own_plan(CrossAttentionPlan, plan)
        if self.is_empty:
            return
        present, after = np.zeros((2, plan.step.size), np.float32)
        mask = self._masks[0] if self._masks and plan.seen else None
        rows = None if mask is None else np.full(mask.shape[::-1], HIDDEN, NUMPY[mask.dtype])
        for run, views in plan.seen:
            if rows is not None and not views:
                # a token sees the first cell: softmax of a fully masked row is NaN
                rows[run.row : run.row + run.count, 0] = SEEN
            for view in views:
                part = slice(run.row + view.begin - run.position, run.row + view.end - run.position)
                present[part], after[part] = 1, view.after
                if rows is not None:
                    for low, high in view.cells:
                        rows[part, low - self._first : high - self._first] = SEEN
        if mask is not None and rows is not None:
            mask.from_bytes(rows)
        self._cells.from_bytes(plan.cells)
        self.present.from_floats(present)
        if self._after is not None:
            self._after.from_floats(after)
