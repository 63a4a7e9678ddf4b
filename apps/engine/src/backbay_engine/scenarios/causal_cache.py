"""The causal cache on a backend, through random actions: its attention against attention computed anew."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from backbay import CacheFullError, Context, DType, Tensor
from backbay_conformance.plugin import (
    Cell,
    ChoiceSource,
    Draw,
    Fault,
    Lab,
    action,
    number,
    rotated,
    scenario,
    walk,
)

from ..cache import Cache, CachePlan, CausalCache, LayeredCache
from ..cache.cells.masks import AttentionWindow
from ..errors import CacheShiftError, DroppedHistoryError, SharedCellsError
from ..steps.step import Step, next_step
from .attention_machine import (
    BATCH,
    CAPACITY,
    HEAD,
    SEQUENCES,
    SPANNED,
    Array,
    AttentionMachine,
    AttentionShape,
    TracedLayers,
)

KNOWN = (DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0)
KINDS = ("plain", "window", "memory", "chunk", "two kinds")


def has_tokens(machine: CausalCacheMachine) -> bool:
    return any(machine.ends)


class CausalCacheMachine(AttentionMachine):
    """The machine of a causal cache, alone or in a layered cache; float64 recomputes every token's attention."""

    def __init__(self, lab: Lab, choose: ChoiceSource) -> None:
        super().__init__(lab, choose)
        self.shapes = [self._shape(choose), self._shape(choose)]
        dtype = self._dtype(choose)
        self.kind = KINDS[choose.below(len(KINDS))]
        self.cache, self.visibilities = self._cache(choose)
        self.open(self.cache, dtype)
        # The cells of each layer, by sequence and position; shared prefixes are the same objects.
        self.cells: list[list[dict[int, Cell]]] = [[{} for _ in range(SEQUENCES)] for _ in self.shapes]
        self.sharing = False
        self.tell(f"{self.kind} {self.dtype} {self.visibilities} {self.shapes}")

    # -- steps -------------------------------------------------------------------------------------------

    @action(weight=4)
    def prompt(self, choose: ChoiceSource) -> None:
        """Some tokens of one to three sequences, perhaps with spans."""
        counts = {n: 1 + choose.below(4) for n in self.some(choose)}
        step = next_step(self.ends, [n for n, count in counts.items() for _ in range(count)])
        spans = None
        if choose.below(3) == 0:
            # Runs of equal numbers; -1 is in no span
            spans = np.array([choose.below(3) - 1 for _ in range(step.size)], np.int32)
            spans = np.maximum.accumulate(spans)
        self._run(Step(step.tokens, step.positions, step.sequences, step.outputs, spans), choose)

    @action(has_tokens, weight=6)
    def decode(self, choose: ChoiceSource) -> None:
        """One token of each sequence that has tokens, or of one of them."""
        held = [n for n in range(SEQUENCES) if self.ends[n]] if choose.below(2) else [self._held(choose)]
        for _ in range(1 + choose.below(3)):
            self._run(next_step(self.ends, held), choose)

    @action()
    def interleave(self, choose: ChoiceSource) -> None:
        """Tokens of two sequences, interleaved."""
        first = choose.below(SEQUENCES)
        self._run(next_step(self.ends, [first, (first + 1) % SEQUENCES, first]), choose)

    @action()
    def fill_up(self, choose: ChoiceSource) -> None:
        """A step full of one sequence's tokens."""
        self._run(next_step(self.ends, [choose.below(SEQUENCES)] * BATCH), choose)

    @action()
    def fail(self, choose: ChoiceSource) -> None:
        """A step that is planned, and then rolled back."""
        step = next_step(self.ends, [n for n in self.some(choose) for _ in range(1 + choose.below(3))])
        plan = self._plan(step)
        if plan is not None:
            self.tell("fail")
            self.cache.rollback(step)
            self._check_resumable()

    @action()
    def reserve(self, choose: ChoiceSource) -> None:
        step = next_step(self.ends, [0] * (1 + choose.below(BATCH)))
        self.tell(f"reserve {step.size}")
        TracedLayers(self, self.shapes, self.cache.worst(step)).ctx.reserve()

    # -- changing ----------------------------------------------------------------------------------------

    @action(has_tokens, weight=2)
    def copy_prefix(self, choose: ChoiceSource) -> None:
        source = self._held(choose)
        target = (source + 1 + choose.below(SEQUENCES - 1)) % SEQUENCES
        length = self.cache.last_resumable(source, 1 + choose.below(self.ends[source]))
        self.tell(f"copy {source} [0, {length}) to {target}")
        self.cache.copy_prefix(source, target, length)
        self.ends[target], self.sharing = length, True
        for layer in self.cells:
            layer[target] = {n: cell for n, cell in layer[source].items() if n < length}
        self._check_resumable()

    @action(has_tokens, weight=3)
    def shift(self, choose: ChoiceSource) -> None:
        """Remove a range from a sequence; later positions move down."""
        sequence = self._held(choose)
        end = self.ends[sequence]
        low = choose.below(end)
        high = min(end, low + 1 + choose.below(end - low))
        self.tell(f"remove {sequence} [{low}, {high}) of {end}")
        try:
            self.cache.remove(sequence, low, high)
        except CacheShiftError as error:
            self._excuse(error)
            self.tell("refused")
            self._check_resumable()
            return
        self._close_gap(sequence, low, high)
        self._drop_if_stuck(sequence)

    @action(has_tokens, weight=2)
    def go_back(self, choose: ChoiceSource) -> None:
        sequence = self._held(choose)
        wanted = choose.below(self.ends[sequence] + 1)
        position = self.cache.last_resumable(sequence, wanted)
        if position not in (0, wanted):
            raise Fault("cache", f"sequence {sequence} can go on at {position}, asked for {wanted}")
        self.tell(f"go back {sequence} to {position}, for {wanted}")
        self.cache.remove(sequence, position)
        self._close_gap(sequence, position, self.ends[sequence])
        self._check_resumable()

    @action(has_tokens)
    def forget(self, choose: ChoiceSource) -> None:
        sequence = self._held(choose)
        self.tell(f"forget {sequence}")
        self.cache.remove(sequence, 0)
        self._close_gap(sequence, 0, self.ends[sequence])

    @action(lambda machine: len(machine.traced) > 3)
    def forget_steps(self, choose: ChoiceSource) -> None:
        self.tell("close the traced steps")
        self.close_steps()

    def _run(self, step: Step, choose: ChoiceSource) -> None:
        """Store and attend; compare every token in every layer."""
        rng = np.random.default_rng(choose.below(1 << 16))
        plan = self._plan(step)
        if plan is None:
            return
        key = (step.size, plan.key)
        if key in self.traced:
            self.traced[key].bound.fill(plan)
        else:
            self.traced[key] = TracedLayers(self, self.shapes, plan)
        data = [self._data(rng, shape, step.size) for shape in self.shapes]
        got = self.traced[key].run(step.positions, data)
        for sequence, position in self._tokens(step):
            self.ends[sequence] = position + 1
        for layer, (shape, arrays) in enumerate(zip(self.shapes, data, strict=True)):
            self._store(layer, shape, step, arrays)
            self._compare(layer, shape, step, arrays[0], got[layer])

    def _plan(self, step: Step) -> CachePlan | None:
        """The plan; None if the cache is full, which is an error unless a sequence would outgrow its capacity."""
        tokens = self._tokens(step)
        self.tell(f"step {tokens}" + ("" if step.spans is None else f" with spans {step.spans.tolist()}"))
        try:
            return self.cache.plan(step)
        except CacheFullError as error:
            if all(position < CAPACITY for _, position in tokens):
                raise Fault("cache", f"there is room, but {error}") from None
            self.tell("full")
            self._check_resumable()
            return None

    def _store(self, layer: int, shape: AttentionShape, step: Step, arrays: list[Array]) -> None:
        for i, (sequence, position) in enumerate(self._tokens(step)):
            key = self._rotated(shape, arrays[1][i], position)
            value = number(arrays[2][i], self.cost)
            self.cells[layer][sequence][position] = self.cell(sequence, position, key, value)

    def _compare(self, layer: int, shape: AttentionShape, step: Step, queries: Array, got: Array) -> None:
        tokens = self._tokens(step)
        for i, (sequence, position) in enumerate(tokens):
            visible = set(range(self.visibilities[layer].first(position), position + 1))
            if step.spans is not None and layer == SPANNED and step.spans[i] >= 0:
                visible |= {
                    p for j, (s, p) in enumerate(tokens) if s == sequence and step.spans[j] == step.spans[i]
                }
            cells = [self.cells[layer][sequence][n] for n in sorted(visible)]
            query = self._rotated(shape, queries[i], position)
            self.compare(got[i], query, cells, f"layer {layer}: attention of {sequence}@{position}")

    def _close_gap(self, sequence: int, low: int, high: int) -> None:
        """Remove a range from the expected cells of a sequence."""
        for layer, shape in zip(self.cells, self.shapes, strict=True):
            old, gap = layer[sequence], high - low
            layer[sequence] = {n: cell for n, cell in old.items() if n < low}
            for n, cell in old.items():
                if n >= high:
                    turned = rotated(self.rotated(cell.key), -gap, shape.dim, shape.base, shape.mode)
                    moved = Cell(n - gap, {sequence}, self.stored(turned), cell.value)
                    layer[sequence][n - gap] = moved
        self.ends[sequence] -= high - low

    def _drop_if_stuck(self, sequence: int) -> None:
        """Empty a sequence that cannot continue."""
        if not self.cache.can_resume(sequence, self.ends[sequence]):
            if self.kind == "plain":
                raise Fault("cache", f"sequence {sequence} cannot go on")
            self.cache.remove(sequence, 0)
            self._close_gap(sequence, 0, self.ends[sequence])
        self._check_resumable()

    def _excuse(self, error: CacheShiftError) -> None:
        """A refusal is right if a window has dropped positions that would become visible, or if copies do not fit."""
        windowed = self.kind != "plain" and isinstance(error, DroppedHistoryError)
        if not windowed and not (self.sharing and isinstance(error, SharedCellsError)):
            raise Fault("cache", f"nothing is in the way, but {error}")

    def _check_resumable(self) -> None:
        """Sequences can continue at their ends; without windows, also anywhere before."""
        for sequence, end in enumerate(self.ends):
            places = range(end + 1) if self.kind == "plain" else [end]
            for position in places:
                if not self.cache.can_resume(sequence, position):
                    raise Fault("cache", f"sequence {sequence} of {end} cannot be resumed at {position}")
            if self.cache.can_resume(sequence, end + 1):
                raise Fault("cache", f"sequence {sequence} of {end} could be resumed at {end + 1}")

    def _tokens(self, step: Step) -> list[tuple[int, int]]:
        return list(zip(step.sequences.tolist(), step.positions.tolist(), strict=True))

    def _held(self, choose: ChoiceSource) -> int:
        held = [n for n in range(SEQUENCES) if self.ends[n]]
        return held[choose.below(len(held))]

    def _rotated(self, shape: AttentionShape, x: Array, position: int) -> Any:
        return rotated(number(x, self.cost), position, shape.dim, shape.base, shape.mode)

    def _data(self, rng: np.random.Generator, shape: AttentionShape, size: int) -> list[Array]:
        heads = (shape.heads, shape.kv_heads, shape.kv_heads)
        query, key, value = [rng.standard_normal((size, n, HEAD)).astype(np.float32) for n in heads]
        # Small queries: the rounding of keys and sums then changes scores little, and the error bound is tight.
        return [query / (8 if self.dtype.is_quantized else 4), key, value]

    # -- random choices --------------------------------------------------------------------------------

    def _shape(self, choose: ChoiceSource) -> AttentionShape:
        kv_heads = 1 + choose.below(2)
        mode: Literal["normal", "neox"] = "neox" if choose.below(2) else "normal"
        return AttentionShape(
            kv_heads, kv_heads * (1 + choose.below(2)), mode, (HEAD, HEAD // 2)[choose.below(2)], 500.0
        )

    def _dtype(self, choose: ChoiceSource) -> DType:
        config = self.backend.cache_config()
        held = [dtype for dtype in KNOWN if dtype in config.dtypes]
        held = [dtype for dtype in held if not (config.permuted_v and dtype.is_quantized)]
        # Q4_0 half as often as the others: its steps are so coarse that no bound of an average is tight.
        held += [dtype for dtype in held if dtype is not DType.Q4_0]
        return held[choose.below(len(held))]

    def _turn(self, ctx: Context, layer: int, keys: Tensor, offsets: Tensor) -> Tensor:
        return self.shapes[layer].turn(ctx, keys, offsets)

    def _cache(self, choose: ChoiceSource) -> tuple[Cache, list[AttentionWindow]]:
        """Small buckets: histories have many lengths and begins, and cells move."""
        size, bucket = 2 + choose.below(6), 4
        if self.kind == "plain":
            return CausalCache(self._turn, bucket=bucket), [AttentionWindow()] * 2
        if self.kind == "chunk":
            return CausalCache(self._turn, chunk=size, bucket=bucket), [AttentionWindow(chunk=size)] * 2
        memory = size + choose.below(8) if self.kind == "memory" else None
        windowed = CausalCache(self._turn, window=size, memory=memory, bucket=bucket)
        if self.kind != "two kinds":
            return windowed, [AttentionWindow(size)] * 2
        both = LayeredCache([windowed, CausalCache(self._turn, bucket=bucket)], kind=lambda layer: layer % 2)
        return both, [AttentionWindow(size), AttentionWindow()]


@scenario("cache", smoke=4, default=30, nightly=300)
def engine_causal_cache(lab: Lab, draw: Draw) -> None:
    """The engine's causal cache, with windows and chunks: store, read, share, shift, cut and move."""
    walk(CausalCacheMachine, lab, draw, 40)
