"""The cache of encoder outputs: written once for each sequence, seen by all tokens of the sequence."""

from __future__ import annotations

from typing import final

import numpy as np

from backbay import BackbayError, Backend, CacheFullError, Context, Tensor

from ...steps.step import Ints, Step
from ..cells.cell_table import TokenRun, token_runs
from ..cells.contents import CacheContents, read_cells, write_cells
from ..contract import CachePlan, CacheSizes, own_plan
from .cross_attention import (
    NOTHING,
    BoundCrossAttentionCache,
    CrossAttentionCache,
    CrossAttentionPlan,
    PositionRun,
    VisibleRows,
)


@final
class EncoderCache(CrossAttentionCache):
    """Keys and values of encoder outputs, at most `length` rows for each sequence.

    `expect(sequence, count)` announces that the next step of a sequence puts an output of `count` rows. In that step,
    `put` takes the rows of all expected outputs, in the step's order. A sequence has one output. It is removed with
    the position of the first token of its step. A removal without `end` cancels the expected output.

        bound.puts        rows that this step puts
        bound.is_empty    True: no sequence of the step has an output, so `get` has nothing to give
        bound.present     f32 (1, 1, tokens): 0 for tokens of sequences without an output, whose attention is void
        bound.get(...)    `mask` is None if every token sees the whole history. A model may use a mask of its own.
    """

    _seen_before = False
    length: int

    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        self.open_regions(backend, sizes, sizes.sequences)

    def expect(self, sequence: int, count: int) -> None:
        """Announce that the next step with this sequence puts an encoder's output of `count` rows."""
        if self._of(sequence):
            raise BackbayError(f"sequence {sequence} has an encoder's output already; remove it first")
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        if count > self._room:
            raise CacheFullError(sequence, count, self._room)
        self._expected[sequence] = count

    def plan(self, step: Step) -> CrossAttentionPlan:
        runs = token_runs(step)
        for run in runs:
            self.check(run.sequence)
        puts = [NOTHING]
        for run in runs:
            count = self._expected.pop(run.sequence, 0)
            if count:
                puts.append(self._put(run.sequence, count, run.position))
        return self.planned(step, [(run, self._views(run)) for run in runs], np.concatenate(puts))

    def worst(self, step: Step, puts: int | None = None) -> CrossAttentionPlan:
        """The step sees all regions, and puts rows: by default an output, if it has more than one token."""
        puts = (self.length if step.size > 1 else 0) if puts is None else puts
        return self.planned_whole(step, np.arange(min(puts, self.storage.cells), dtype=np.int32))

    def bind(self, ctx: Context, plan: CachePlan) -> BoundEncoderCache:
        return BoundEncoderCache(self, ctx, own_plan(CrossAttentionPlan, plan))

    def rollback(self, step: Step) -> None:
        for run in token_runs(step):
            for shown in self.shown(run.sequence):
                if shown.position == run.position:
                    self._shown[run.sequence] = []
                    self._expected[run.sequence] = shown.rows

    def _put(self, sequence: int, rows: int, position: int) -> Ints:
        """Let a sequence have an output; its cells."""
        region = self.free_regions()[0]
        self._shown[sequence] = [(VisibleRows(b"", position, rows, rows), region)]
        return self.cells_of(region, rows)

    def _views(self, run: TokenRun) -> list[PositionRun]:
        cells = [self.range_of(region, shown.rows) for shown, region in self._of(run.sequence)]
        return [PositionRun(run.position, run.position + run.count, cells)] if cells else []

    def contents(self, sequence: int) -> CacheContents:
        if not (held := self._of(sequence)):
            return CacheContents({}, {"count": 0, "position": 0})
        ((shown, region),) = held
        arrays = read_cells(self.storage, self.cells_of(region, shown.rows))
        return CacheContents(arrays, {"count": shown.rows, "position": shown.position})

    def restore(self, sequence: int, contents: CacheContents) -> None:
        self.check(sequence)
        count = contents.number("count")
        if count > self._room:
            raise CacheFullError(sequence, count, self._room)
        if count:
            cells = self.cells_of(self.free_regions()[0], count)
            write_cells(self.storage, cells, contents)
            self._put(sequence, count, contents.number("position"))


@final
class BoundEncoderCache(BoundCrossAttentionCache):
    _missing = "no encoder's output in this step: put comes first"
    is_empty: bool
    present: Tensor

    def __init__(self, cache: EncoderCache, ctx: Context, plan: CrossAttentionPlan) -> None:
        super().__init__(cache, ctx, plan, 1, 1)
        self.puts = len(plan.cells)
        self.fill(plan)

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        if key.dim(2) != self.puts:
            raise BackbayError(f"layer {layer}: this step puts {self.puts} of an encoder's output, got {key}")
        super().put(ctx, layer, key, value)
