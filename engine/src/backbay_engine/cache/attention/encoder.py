"""The cache of encoder outputs: written once for each sequence, seen by all tokens of the sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, Backend, CacheFullError, Context, DType, Tensor

from ...steps.step import Ints, Step
from ..cells.bookkeeping import Run, runs_of
from ..cells.cell_cache import CellCache
from ..cells.contents import Contents, read_cells, write_cells
from ..cells.masks import HIDDEN, NUMPY, SEEN
from ..cells.storage import rounded_up
from ..contract import BoundCache, CachePlan, CacheSizes, History, own_plan


@dataclass(frozen=True)
class EncoderPlan(CachePlan):
    """The cells that a step's outputs are written to, the range of cells it sees, and the part each token sees."""

    cells: Ints
    first: int
    history: int
    masked: bool
    seen: Sequence[
        tuple[Run, int, int]
    ]  # runs, and the cells [low, high) that they see; empty if high is low


@dataclass
class Output:
    """An encoder's output: its region of cells, its number of cells, and the position of the step that put it."""

    region: int
    count: int
    position: int


@final
class EncoderCache(CellCache):
    """Keys and values of encoder outputs, at most `length` rows for each sequence.

    `expect(sequence, count)` announces that the next step of a sequence puts an output of `count` rows. In that step,
    `put` takes the rows of all expected outputs, in the step's order. A sequence has one output. It is removed with
    the position of the first token of its step. A removal without `end` cancels the expected output.

        bound.puts        rows that this step puts
        bound.is_empty    True: no sequence of the step has an output, so `get` has nothing to give
        bound.present     f32 (1, 1, tokens): 0 for tokens of sequences without an output, whose attention is void
        bound.get(...)    `mask` is None if every token sees the whole history. A model may use a mask of its own.
    """

    def __init__(self, length: int) -> None:
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        self.length = length

    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        padding = backend.cache_config().cache_padding
        room = rounded_up(self.length, padding)
        self.open_store(backend, sizes, sizes.sequences * room)
        self._padding, self._room = padding, room
        self._outputs: list[Output | None] = [None] * sizes.sequences
        self._expected: dict[int, int] = {}

    @property
    def used(self) -> int:
        if not self.is_open:
            return 0
        return sum({output.region: output.count for output in self._outputs if output is not None}.values())

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

    def plan(self, step: Step) -> EncoderPlan:
        runs = runs_of(step)
        for run in runs:
            self._output(run.sequence)
        cells: list[Ints] = []
        for run in runs:
            count = self._expected.pop(run.sequence, 0)
            if count:
                region = self._free_region()
                self._outputs[run.sequence] = Output(region, count, run.position)
                low = region * self._room
                cells.append(np.arange(low, low + count, dtype=np.int32))
        seen = [(run, *self._seen(run.sequence)) for run in runs]
        return self._planned(step, cells, seen)

    def worst(self, step: Step, puts: int | None = None) -> EncoderPlan:
        """The step sees all regions, and puts rows: by default an output, if it has more than one token."""
        total = self.storage.cells
        puts = (self.length if step.size > 1 else 0) if puts is None else puts
        put = np.arange(min(puts, total), dtype=np.int32)
        key = (0, total, True, len(put))
        return EncoderPlan(step, key, put, 0, total, True, ())

    def bind(self, ctx: Context, plan: CachePlan) -> BoundEncoderCache:
        return BoundEncoderCache(self, ctx, own_plan(EncoderPlan, plan))

    def rollback(self, step: Step) -> None:
        for run in runs_of(step):
            output = self._output(run.sequence)
            if output is not None and output.position == run.position:
                self._outputs[run.sequence] = None
                self._expected[run.sequence] = output.count

    def _seen(self, sequence: int) -> tuple[int, int]:
        output = self._outputs[sequence]
        if output is None:
            return 0, 0
        low = output.region * self._room
        return low, low + output.count

    def _planned(self, step: Step, cells: list[Ints], seen: list[tuple[Run, int, int]]) -> EncoderPlan:
        held = [(low, high) for _, low, high in seen if high > low]
        put = np.concatenate(cells) if cells else np.zeros(0, np.int32)
        if not held:
            return EncoderPlan(step, (0, 0, False, 0), put, 0, 0, False, ())
        first = min(low for low, _ in held)
        end = max(high for _, high in held)
        history = rounded_up(end - first, self._padding)
        masked = any((low, high) != (first, first + history) for _, low, high in seen)
        return EncoderPlan(step, (first, history, masked, len(put)), put, first, history, masked, seen)

    # -- sequences -------------------------------------------------------------------------------------

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        output = self._output(source)
        self._output(target)
        if source != target:
            self._expected.pop(target, None)
            shared = output is not None and output.position < length
            self._outputs[target] = (
                Output(output.region, output.count, output.position) if shared and output else None
            )
        elif output is not None and output.position >= length:
            self._outputs[source] = None

    def can_resume(self, sequence: int, position: int) -> bool:
        self._output(sequence)
        return position >= 0

    def removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        self._output(sequence)

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
        low, high = self._seen(sequence)
        arrays = read_cells(self.storage, np.arange(low, high, dtype=np.int32))
        return Contents(arrays, {"count": output.count, "position": output.position})

    def restore(self, sequence: int, contents: Contents) -> None:
        self._output(sequence)
        count = contents.number("count")
        if not 0 <= count <= self._room:
            raise CacheFullError(sequence, count, self._room)
        if count:
            region = self._free_region()
            low = region * self._room
            write_cells(self.storage, np.arange(low, low + count, dtype=np.int32), contents)
            self._outputs[sequence] = Output(region, count, contents.number("position"))

    def _free_region(self) -> int:
        taken = {output.region for output in self._outputs if output is not None}
        return next(n for n in range(len(self._outputs)) if n not in taken)

    def wipe(self, sequence: int) -> None:
        output = self._output(sequence)
        if (
            output is not None
            and sum(o is not None and o.region == output.region for o in self._outputs) == 1
        ):
            low, high = self._seen(sequence)
            self.storage.wipe(np.arange(low, high, dtype=np.int32))
        self.remove(sequence, 0)

    def _output(self, sequence: int) -> Output | None:
        self.check_open()
        if not 0 <= sequence < len(self._outputs):
            raise BackbayError(f"sequence must be in [0, {len(self._outputs)}), got {sequence}")
        return self._outputs[sequence]


@final
class BoundEncoderCache(BoundCache):
    """The leaves of a step that sees outputs, and may put some."""

    def __init__(self, cache: EncoderCache, ctx: Context, plan: EncoderPlan) -> None:
        self._storage, self._first, self._history = cache.storage, plan.first, plan.history
        self.puts, self.is_empty = len(plan.cells), plan.history == 0
        config, host, size = self._storage.config, ctx.input(), plan.step.size
        self._cells = host.empty(DType.I32, self.puts)
        self.present = host.empty(DType.F32, 1, 1, size)
        rows = self._storage.mask_rows(size)
        self._mask = host.empty(config.mask_dtype, plan.history, rows) if plan.masked else None
        self._shape, self._kind = (rows, plan.history), NUMPY[config.mask_dtype]
        self._written: dict[int, tuple[Tensor, Tensor]] = {}
        self.fill(plan)

    def fill(self, plan: CachePlan) -> None:
        plan = own_plan(EncoderPlan, plan)
        self._cells.from_bytes(plan.cells)
        present = np.zeros(plan.step.size, np.float32)
        for run, low, high in plan.seen:
            present[run.row : run.row + run.count] = high > low
        self.present.from_floats(present)
        if self._mask is not None and plan.seen:
            self._mask.from_bytes(self._rows(plan))

    def _rows(self, plan: EncoderPlan) -> NDArray[Any]:
        rows = np.full(self._shape, HIDDEN, self._kind)
        for run, low, high in plan.seen:
            block = rows[run.row : run.row + run.count]
            # Without an output, a token sees the first cell: softmax of a fully masked row is NaN.
            block[:, low - self._first : high - self._first] = SEEN
            if low == high:
                block[:, 0] = SEEN
        return rows

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        if key.dim(2) != self.puts:
            raise BackbayError(f"layer {layer}: this step puts {self.puts} of an encoder's output, got {key}")
        self._written[layer] = self._storage.store(ctx, layer, key, value, self._cells)

    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> History:
        held = self._storage.layers.get(layer)
        if held is None or self.is_empty:
            raise BackbayError(f"layer {layer} has no encoder's output in this step: put comes first")
        keys, values = self._written.get(layer, (held.key, held.value))
        return History(
            self._storage.keys(ctx, held, keys, self._first, self._history),
            self._storage.values(ctx, held, values, self._first, self._history),
            self._mask,
        )
