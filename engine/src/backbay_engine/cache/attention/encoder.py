"""The cache of encoder outputs: written once for each sequence, seen by all tokens of the sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from backbay import BackbayError, Backend, CacheFullError, Context, DType, Tensor

from ...steps.step import Floats, Step
from ..cells.bookkeeping import Run, runs_of
from ..cells.contents import Contents, read_cells, write_cells
from ..contract import CachePlan, CacheSizes, own_plan
from .regions import NOTHING, BoundRegionCache, RegionCache, RegionPlan, View


@dataclass
class Output:
    region: int
    count: int
    position: int


@final
class EncoderCache(RegionCache):
    """Keys and values of encoder outputs, at most `length` rows for each sequence.

    `expect(sequence, count)` announces that the next step of a sequence puts an output of `count` rows. In that step,
    `put` takes the rows of all expected outputs, in the step's order. A sequence has one output. It is removed with
    the position of the first token of its step. A removal without `end` cancels the expected output.

        bound.puts        rows that this step puts
        bound.is_empty    True: no sequence of the step has an output, so `get` has nothing to give
        bound.present     f32 (1, 1, tokens): 0 for tokens of sequences without an output, whose attention is void
        bound.get(...)    `mask` is None if every token sees the whole history. A model may use a mask of its own.
    """

    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        self.open_regions(backend, sizes, sizes.sequences)
        self._outputs: list[Output | None] = [None] * sizes.sequences
        self._expected: dict[int, int] = {}

    def regions_of(self, sequence: int) -> list[tuple[int, int]]:
        output = self._output(sequence)
        return [] if output is None else [(output.region, output.count)]

    def expect(self, sequence: int, count: int) -> None:
        """Announce that the next step with this sequence puts an encoder's output of `count` rows."""
        if self._output(sequence) is not None:
            raise BackbayError(f"sequence {sequence} has an encoder's output already; remove it first")
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        if count > self._room:
            raise CacheFullError(sequence, count, self._room)
        self._expected[sequence] = count

    # -- steps -------------------------------------------------------------------------------------------

    def plan(self, step: Step) -> RegionPlan:
        runs = runs_of(step)
        for run in runs:
            self.check(run.sequence)
        puts = [NOTHING]
        for run in runs:
            count = self._expected.pop(run.sequence, 0)
            if count:
                region = self._free_region()
                self._outputs[run.sequence] = Output(region, count, run.position)
                puts.append(self.cells_of(region, count))
        return self.planned(step, [(run, self._views(run)) for run in runs], np.concatenate(puts))

    def worst(self, step: Step, puts: int | None = None) -> RegionPlan:
        """The step sees all regions, and puts rows: by default an output, if it has more than one token."""
        puts = (self.length if step.size > 1 else 0) if puts is None else puts
        return self.planned_whole(step, np.arange(min(puts, self.storage.cells), dtype=np.int32))

    def bind(self, ctx: Context, plan: CachePlan) -> BoundEncoderCache:
        return BoundEncoderCache(self, ctx, own_plan(RegionPlan, plan))

    def rollback(self, step: Step) -> None:
        for run in runs_of(step):
            output = self._output(run.sequence)
            if output is not None and output.position == run.position:
                self._outputs[run.sequence] = None
                self._expected[run.sequence] = output.count

    def _views(self, run: Run) -> list[View]:
        cells = [self.range_of(region, rows) for region, rows in self.regions_of(run.sequence)]
        return [View(run.position, run.position + run.count, cells)] if cells else []

    # -- sequences -------------------------------------------------------------------------------------

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        output = self._output(source)
        self.check(target)
        if source != target:
            self._expected.pop(target, None)
            shared = output is not None and output.position < length
            self._outputs[target] = (
                Output(output.region, output.count, output.position) if shared and output else None
            )
        elif output is not None and output.position >= length:
            self._outputs[source] = None

    def removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        self.check(sequence)

        def remove() -> None:
            if end is None:
                self._expected.pop(sequence, None)
            output = self._outputs[sequence]
            if output is None or output.position < begin:
                return
            if end is None or output.position < end:
                self._outputs[sequence] = None
            else:
                output.position -= end - begin

        return remove

    def contents(self, sequence: int) -> Contents:
        output = self._output(sequence)
        if output is None:
            return Contents({}, {"count": 0, "position": 0})
        arrays = read_cells(self.storage, self.cells_of(output.region, output.count))
        return Contents(arrays, {"count": output.count, "position": output.position})

    def restore(self, sequence: int, contents: Contents) -> None:
        self.check(sequence)
        count = contents.number("count")
        if not 0 <= count <= self._room:
            raise CacheFullError(sequence, count, self._room)
        if count:
            region = self._free_region()
            write_cells(self.storage, self.cells_of(region, count), contents)
            self._outputs[sequence] = Output(region, count, contents.number("position"))

    def _free_region(self) -> int:
        taken = {output.region for output in self._outputs if output is not None}
        return next(n for n in range(len(self._outputs)) if n not in taken)

    def _output(self, sequence: int) -> Output | None:
        self.check(sequence)
        return self._outputs[sequence]


@final
class BoundEncoderCache(BoundRegionCache):
    _missing = "no encoder's output in this step: put comes first"
    is_empty: bool

    def __init__(self, cache: EncoderCache, ctx: Context, plan: RegionPlan) -> None:
        super().__init__(cache, ctx, plan)
        self.puts = len(plan.cells)
        self.present = self._host.empty(DType.F32, 1, 1, plan.step.size)
        self.fill(plan)

    def fill_leaves(self, plan: RegionPlan, present: Floats, after: Floats) -> None:
        self._cells.from_bytes(plan.cells)
        self.present.from_floats(present)

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        if key.dim(2) != self.puts:
            raise BackbayError(f"layer {layer}: this step puts {self.puts} of an encoder's output, got {key}")
        super().put(ctx, layer, key, value)
