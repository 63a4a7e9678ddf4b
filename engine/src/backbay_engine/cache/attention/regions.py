"""Caches in regions: rows that are written once, and that whole sequences see or do not see."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backbay import Backend, Context

from ...steps.step import Floats, Ints, Step
from ..cells.bookkeeping import Run
from ..cells.masks import HIDDEN, NUMPY, SEEN
from ..cells.storage import BoundCellCache, CellCache, rounded_up
from ..contract import CachePlan, CacheSizes, own_plan

NOTHING: Ints = np.zeros(0, np.int32)


@dataclass(frozen=True)
class View:
    """Consecutive positions that see the same ranges of cells, each from its first cell to before its end.

    after  whether the positions are after the first picture, if there are pictures
    """

    begin: int
    end: int
    cells: Sequence[tuple[int, int]]
    after: bool = True


@dataclass(frozen=True)
class RegionPlan(CachePlan):
    """The cells that a step writes, the range of cells that it sees, and what each of its runs sees."""

    cells: Ints
    first: int
    history: int
    masked: bool
    seen: Sequence[tuple[Run, Sequence[View]]]


class RegionCache(CellCache):
    """Regions of at most `length` rows, which several sequences may share."""

    def __init__(self, length: int) -> None:
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        self.length = length

    def open_regions(self, backend: Backend, sizes: CacheSizes, regions: int) -> None:
        self._padding = backend.cache_config().cache_padding
        self._room = rounded_up(self.length, self._padding)
        self.open_store(backend, sizes, regions * self._room)
        self.regions = regions

    @abstractmethod
    def regions_of(self, sequence: int) -> Sequence[tuple[int, int]]:
        """The regions of a sequence, and how many rows each has."""

    @property
    def used(self) -> int:
        if not self.is_open:
            return 0
        return sum(dict(each for n in range(self.sizes.sequences) for each in self.regions_of(n)).values())

    def range_of(self, region: int, rows: int) -> tuple[int, int]:
        """The cells of a region's first rows, from the first to before the end."""
        return region * self._room, region * self._room + rows

    def cells_of(self, region: int, rows: int) -> Ints:
        return np.arange(*self.range_of(region, rows), dtype=np.int32)

    def can_resume(self, sequence: int, position: int) -> bool:
        self.check(sequence)
        return position >= 0

    def wipe(self, sequence: int) -> None:
        others = {
            region for n in range(self.sizes.sequences) if n != sequence for region, _ in self.regions_of(n)
        }
        for region, _ in self.regions_of(sequence):
            if region not in others:
                self.storage.wipe(self.cells_of(region, self._room))
        self.remove(sequence, 0)

    def planned(
        self, step: Step, seen: Sequence[tuple[Run, Sequence[View]]], puts: Ints = NOTHING
    ) -> RegionPlan:
        ranges = [each for _, views in seen for view in views for each in view.cells]
        if not ranges:
            return RegionPlan(step, (0, 0, False, 0), puts, 0, 0, masked=False, seen=seen)
        first = min(low for low, _ in ranges)
        history = rounded_up(max(high for _, high in ranges) - first, self._padding)
        everything = [(first, first + history)]
        masked = any(not views or any(view.cells != everything for view in views) for _, views in seen)
        return RegionPlan(step, (first, history, masked, len(puts)), puts, first, history, masked, seen)

    def planned_whole(self, step: Step, puts: Ints = NOTHING) -> RegionPlan:
        cells = self.storage.cells
        return RegionPlan(step, (0, cells, True, len(puts)), puts, 0, cells, masked=True, seen=())


class BoundRegionCache(BoundCellCache):
    def __init__(self, cache: RegionCache, ctx: Context, plan: RegionPlan) -> None:
        super().__init__(cache.storage, ctx, plan.first, plan.history, len(plan.cells))
        self.is_empty = plan.history == 0
        dtype, rows = self._storage.config.mask_dtype, self._storage.mask_rows(plan.step.size)
        self._masks = [self._host.empty(dtype, plan.history, rows) if plan.masked else None]

    def fill(self, plan: CachePlan) -> None:
        plan = own_plan(RegionPlan, plan)
        present, after = np.zeros((2, plan.step.size), np.float32)
        mask = self._masks[0] if plan.seen else None
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
        self.fill_leaves(plan, present, after)

    @abstractmethod
    def fill_leaves(self, plan: RegionPlan, present: Floats, after: Floats) -> None:
        """Fill the other leaves; tokens are `present` that see something, and `after` the first picture."""
