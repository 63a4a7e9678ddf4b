"""The cache of causal attention: parallel sequences in one store of cells, with windows, chunks and spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import final

import numpy as np

from backbay import BackbayError, Backend, CacheFullError, Context, Tensor

from ...errors import CacheShiftError, DroppedHistoryError, ForeignSnapshotError, SharedCellsError
from ...steps.leaves import Leaves
from ...steps.step import Ints, Step
from ..cells.cell_table import FEW, CellTable, TokenRun, token_runs
from ..cells.contents import CacheContents, read_cells, write_cells
from ..cells.key_means import learn_means
from ..cells.masks import HIDDEN, NUMPY, AttentionWindow, MaskRows, Rows
from ..cells.storage import BoundCellCache, CellCache, CellPlan, rounded_up
from ..contract import CachePlan, CacheSizes, Shift, own_plan, require_next_positions, require_prefix

BUCKET = 256
PAYS = 16  # moving a cell costs as much as attending to this many


@dataclass(frozen=True)
class CausalPlan(CellPlan):
    runs: Sequence[TokenRun]  # empty in a plan of `worst`


@final
class CausalCache(CellCache):
    """Sequences in one store of cells. A cell holds one position, of one sequence or of several that share it.

    window      positions that a token sees, itself included; None: all earlier ones
    memory      positions that are kept behind the last one, so that sequences can go back; more than the window
    chunk       a token sees only positions of its own chunk of this length
    shift       rotates keys to another position; without it, positions after a removed range cannot move
    bucket      histories are a multiple of it, so that many steps share a key

    A step takes the first free cells, adjacent or not, and sees the range of cells around its sequences. If the range
    has long been more than twice what the sequences use, their cells move to the front of the store.
    """

    def __init__(
        self,
        shift: Shift | None,
        *,
        window: int | None = None,
        memory: int | None = None,
        chunk: int | None = None,
        bucket: int = BUCKET,
    ) -> None:
        for name, value in (("window", window), ("memory", memory), ("chunk", chunk), ("bucket", bucket)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._cells: CellTable | None = None  # made for the first step: a dry run has none
        self.visibility, self.shift, self._bucket = AttentionWindow(window, chunk), shift, bucket
        reach = self.visibility.reach
        if memory is not None and reach is None:
            raise ValueError("memory is for a window or chunks: without them, all is kept")
        self.keep = None if reach is None else max(reach, memory or 0)

    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        config = backend.cache_config()
        each = sizes.capacity if self.keep is None else min(sizes.capacity, self.keep + sizes.batch)
        count = rounded_up(sizes.sequences * each, config.cache_padding)
        storage = self.open_store(backend, sizes, count)
        self._quantum = lcm(self._bucket, config.cache_padding)
        self._cells = None
        self._gathers, self._wasted = storage.can_move(), 0
        self._scratch: Rows = np.empty(0, NUMPY[config.mask_dtype])

    @property
    def used(self) -> int:
        return self.cells.count - self.cells.free if self.is_open else 0

    @property
    def cells(self) -> CellTable:
        if self._cells is None or not self.is_open:
            self._cells = CellTable(self.sizes.sequences, self.sizes.capacity, self.storage.cells)
        return self._cells

    @property
    def host_nbytes(self) -> int:
        sizes = self.sizes
        records = 4 * (self.storage.cells + sizes.sequences * sizes.capacity)
        return records + super().host_nbytes

    def reserve(self) -> None:
        if self._gathers:
            self.storage.mover("keys")
            self.storage.mover("values")
            if self.shift is not None:
                self.storage.mover("keys", self.shift)

    # -- steps -------------------------------------------------------------------------------------------

    def plan(self, step: Step) -> CausalPlan:
        cells, runs = self.cells, token_runs(step)
        self._check(runs)
        cells.forget_passed(self.keep, runs, step.size)
        taken = cells.lowest_free(step.size)
        cells.extend(runs, taken)
        sequences = [runs[0].sequence] if len(runs) == 1 else list({run.sequence: None for run in runs})
        first, history = self._range(*cells.extent(sequences))
        if self._gathered(sequences, history, step):
            taken = np.concatenate([cells.of(r.sequence, r.position, r.position + r.count) for r in runs])
            first, history = self._range(*cells.extent(sequences))
        return CausalPlan(step, (first, history, step.spans is not None), taken, first, history, runs)

    def worst(self, step: Step) -> CausalPlan:
        count = self.storage.cells
        taken = np.arange(step.size, dtype=np.int32) % count
        return CausalPlan(step, (0, count, step.spans is not None), taken, 0, count, ())

    def bind(self, ctx: Context, plan: CachePlan) -> BoundCausalCache:
        return BoundCausalCache(self, ctx, own_plan(CausalPlan, plan))

    def _check(self, runs: Sequence[TokenRun]) -> None:
        """Raise if a sequence cannot continue as a step wants."""
        cells = self.cells
        ends: dict[int, int] = {}
        for run in runs:
            sequence = run.sequence
            self.check(sequence)
            end = ends.get(sequence, cells.end[sequence])
            require_next_positions(sequence, run.position, end)
            if cells.begin[sequence] > self.visibility.first(cells.end[sequence]):
                raise BackbayError(
                    f"sequence {sequence} cannot continue at position {end}: it would see positions from "
                    f"{self.visibility.first(end)} on, but those before {cells.begin[sequence]} are dropped; remove the whole "
                    "sequence"
                )
            if end + run.count > cells.capacity:
                raise CacheFullError(sequence, run.count, cells.capacity - end)
            ends[sequence] = end + run.count

    def _range(self, low: int, high: int) -> tuple[int, int]:
        """The range of cells that a step sees: from `low` on if that halves it, else from cell 0."""
        quantum, count = self._quantum, self.storage.cells
        first = low // quantum * quantum
        if 2 * first < high:
            first = 0
        return first, min(rounded_up(max(high - first, 1), quantum), count - first)

    def scratch(self, history: int, rows: int) -> Rows:
        """An array for the mask of many tokens; all steps share it, because it is large."""
        if self._scratch.size < history * rows:
            self._scratch = np.empty(history * rows, NUMPY[self.storage.config.mask_dtype])
        return self._scratch[: history * rows].reshape(rows, history)

    # -- sequences -------------------------------------------------------------------------------------

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        cells = self.cells
        self.check(source, target)
        require_prefix(source, length, cells.end[source])
        if source == target:
            self.remove(source, length)
            return
        cells.cut(target, 0)
        cells.share(source, target, length)

    def can_resume(self, sequence: int, position: int) -> bool:
        cells = self.cells
        self.check(sequence)
        if not 0 <= position <= cells.end[sequence]:
            return False
        return cells.begin[sequence] <= self.visibility.first(position)

    def removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        cells = self.cells
        self.check(sequence)
        last = cells.end[sequence]
        begin, end = max(begin, 0), last if end is None else min(end, last)
        if begin >= end:
            return lambda: None
        if end == last:
            return lambda: cells.cut(sequence, begin)
        return self._closing(sequence, begin, end)

    @property
    def learns(self) -> bool:
        rotated = any(layer.rotation is not None for layer in self.storage.layers.values())
        return rotated and self.storage.can_move()

    def learn(self, sequence: int) -> None:
        """Learn the mean of each layer's keys."""
        if self.learns:
            cells, end = self.cells.of(sequence), self.cells.end[sequence]
            positions = np.arange(end - len(cells), end, dtype=np.int32)
            learn_means(self.storage, self.shift, cells, positions, self.sizes.capacity)

    def contents(self, sequence: int) -> CacheContents:
        cells = self.cells
        self.check(sequence)
        begin, end = cells.begin[sequence], cells.end[sequence]
        if self.keep is not None:  # what is further behind would need cells that other sequences may have
            begin = max(begin, end - self.keep)
        return CacheContents(
            read_cells(self.storage, cells.of(sequence, begin)), {"begin": begin, "end": end}
        )

    def restore(self, sequence: int, contents: CacheContents) -> None:
        cells, begin, end = self.cells, contents.number("begin"), contents.number("end")
        self.check(sequence)
        if not 0 <= begin <= end or begin > self.visibility.first(end):
            raise ForeignSnapshotError(
                f"the snapshot's positions [{begin}, {end}) are too few to go on after them"
            )
        if end > cells.capacity:
            raise CacheFullError(sequence, end, cells.capacity)
        need = end - begin
        cells.forget_passed(self.keep, [TokenRun(sequence, 0, need, begin)], need)
        taken = cells.lowest_free(need) if need else np.zeros(0, np.int32)
        write_cells(self.storage, taken, contents)
        cells.replace(sequence, begin, taken, begin, taken[:0])

    def wipe(self, sequence: int) -> None:
        self.cells.cut(sequence, 0)
        # Cells behind the window are free by now, and may hold NaN too.
        self.storage.wipe(self.cells.free_from(0))

    def _closing(self, sequence: int, begin: int, end: int) -> Callable[[], None]:
        """A function that closes a gap. Shared cells are copied: other sequences see them where they are."""
        cells, storage, gap = self.cells, self.storage, end - begin
        held, last = cells.begin[sequence], cells.end[sequence]
        kept = held if begin > held else max(end, held) - gap
        what = f"sequence {sequence}: positions [{begin}, {end}) cannot be removed"
        if self.shift is None:
            raise CacheShiftError(f"{what}: this cache cannot rotate the keys of later positions")
        if kept > self.visibility.first(last - gap):
            raise DroppedHistoryError(
                f"{what}: later positions would see positions from {self.visibility.first(last - gap)} on, which are dropped"
            )
        moved = cells.of(sequence, end).copy()
        shared = cells.owners[moved] > 1
        need = int(shared.sum())
        if need > cells.free:
            raise SharedCellsError(
                f"{what}: {need} later cells are shared with other sequences, and only {cells.free} cells are free"
            )
        if not storage.can_move():
            raise CacheShiftError(f"{what}: the backend cannot read {storage.dtype} to rotate keys")
        targets = moved.copy()
        targets[shared] = cells.lowest_free(need)
        turn = storage.mover("keys", self.shift)
        copy = storage.mover("values") if need else None

        def close() -> None:
            old = np.concatenate([cells.of(sequence, begin, end), moved[shared]])
            if copy is not None:
                copy.run(moved[shared], targets[shared])
            try:
                turn.run(moved, targets, -gap)
            except BaseException:
                if need < len(moved):  # only some keys may be rotated: drop them all
                    cells.cut(sequence, begin)
                raise
            cells.replace(sequence, kept, targets, max(end, held) - gap, old)

        return close

    def _gathered(self, sequences: Sequence[int], history: int, step: Step) -> bool:
        """Move the cells of a step's sequences to the front, once the saving is worth it."""
        if history <= 2 * self._quantum or not self._gathers:
            return False
        need = rounded_up(sum(self.cells.end[n] - self.cells.begin[n] for n in sequences), self._quantum)
        if history <= 2 * need:
            return False
        self._wasted += history - need
        if self._wasted < PAYS * need:
            return False
        self._wasted = 0
        try:
            return self._gather(sequences)
        except BaseException:
            self.rollback(step)
            raise

    def _gather(self, sequences: Sequence[int]) -> bool:
        """Cells are only copied to free cells: first move other sequences out of the way, then these to the front."""
        cells = self.cells
        own = np.unique(np.concatenate([cells.of(n) for n in sequences]))
        front = np.arange(len(own), dtype=np.int32)
        for grown in (len(own) + max(self._quantum, len(own) // 2), len(own)):
            others = np.setdiff1d(np.flatnonzero(cells.owners[:grown]).astype(np.int32), own)
            refuge = cells.free_from(grown)[: len(others)]
            if len(refuge) == len(others):
                self._move(others, refuge)
                self._move(np.setdiff1d(own, front), np.setdiff1d(front, own))
                return True
        return False

    def _move(self, sources: Ints, targets: Ints) -> None:
        for part in ("keys", "values") if len(sources) else ():
            self.storage.mover(part).run(sources, targets)
        self.cells.move(sources, targets)


@final
class BoundCausalCache(BoundCellCache):
    _missing = "nothing in this cache: put comes first"

    def __init__(self, cache: CausalCache, ctx: Context, plan: CausalPlan) -> None:
        spans, size = plan.step.spans is not None, plan.step.size
        super().__init__(cache.storage, ctx, plan)
        self._cache = cache
        self._updates = size <= FEW and not spans  # rows of a few tokens, in an array that is kept
        self._rows: Rows | None = None  # made at the first step: a bound worst case needs none
        dtype, rows = self._storage.config.mask_dtype, self._storage.mask_rows(size)
        self._masks = [self._host.empty(dtype, plan.history, rows) for _ in range(1 + spans)]
        self._makers = [MaskRows(cache.visibility, plan.first) for _ in self._masks]
        self._by_distance = Leaves(ctx, plan, "the plan's key")
        self.fill(plan)

    def fill(self, plan: CachePlan) -> None:
        plan = own_plan(CausalPlan, plan)
        self._cells.from_bytes(plan.cells)
        self._by_distance.fill(plan)
        for n, (mask, leaf) in enumerate(zip(self._makers, self._masks, strict=True) if plan.runs else ()):
            if self._updates:
                if self._rows is None:
                    self._rows = np.full(leaf.shape[::-1], HIDDEN, NUMPY[leaf.dtype])
                rows = self._rows
                mask.fill(rows, self._cache.cells, plan.runs)
            else:
                rows = self._cache.scratch(*leaf.shape)
                mask.fill_anew(rows, self._cache.cells, plan.runs, plan.step.spans if n == 0 else None)
            leaf.from_bytes(rows)

    def by_distance(self, name: str, function: Callable[[Ints], Ints]) -> Tensor:
        """A leaf, i32 (history, tokens and padding), of `function(distances)`, which each step fills anew.

        The distance of a cell from a token is the number of positions between them; 0 where a token does not see.
        """
        return self._by_distance.leaf(name, lambda plan: function(self._distances(plan)))

    def _distances(self, plan: CausalPlan) -> Ints:
        found = np.zeros(self._masks[0].shape[::-1], np.int32)
        for run in plan.runs:
            end = run.position + run.count
            columns = self._cache.cells.of(run.sequence, 0, end) - self._first
            held = np.arange(end - len(columns), end, dtype=np.int32)
            asking = np.arange(run.position, end, dtype=np.int32)[:, None]
            found[run.row : run.row + run.count, columns] = np.maximum(asking - held, 0)
        return found

    def named(self) -> dict[str, Tensor]:
        found = {"cells": self._cells, "mask": self._masks[0]}
        for layer in self._written:
            held = self._storage.layers[layer]
            found[f"keys.{layer}"] = held.key
            if held.within is None:
                found[f"values.{layer}"] = held.value
        return found
