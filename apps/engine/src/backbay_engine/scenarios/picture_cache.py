"""The cache of pictures on a backend, through random actions: cross attention against attention computed anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import numpy as np

from backbay import CacheFullError, Context, DType, Tensor
from backbay_conformance.plugin import Cell, ChoiceSource, Draw, Fault, Lab, action, number, scenario, walk

from ..cache import CachePlan, MediaCacheGraph, MediaCrossAttentionCache, VisibleRows
from ..cache.attention.media import content_names
from ..steps.step import Step, next_step
from .attention_machine import HEAD, SCALE, SEQUENCES, Array, AttentionMachine

LONGEST, SPARE = 9, 2
HEADS, KV_HEADS = 4, 2
DTYPES = (DType.F32, DType.F16, DType.BF16, DType.Q4_0)


class MediaCrossAttentionMachine(AttentionMachine):
    """Sequences with pictures: float64 recomputes what every token sees of them."""

    def __init__(self, lab: Lab, choose: ChoiceSource) -> None:
        super().__init__(lab, choose)
        held = [dtype for dtype in DTYPES if dtype in self.backend.cache_config().dtypes]
        self.cache = self.pictures = MediaCrossAttentionCache(LONGEST, spare=SPARE)
        self.open(self.cache, held[choose.below(len(held))])
        self.writer = MediaCacheGraph(self.pictures, KV_HEADS * HEAD, _keys_and_values)
        self.shown: list[list[VisibleRows]] = [[] for _ in range(SEQUENCES)]
        self.tell(f"pictures in {self.dtype}")

    def close_steps(self) -> None:
        super().close_steps()
        self.writer.close()

    @action(weight=3)
    def show(self, choose: ChoiceSource) -> None:
        """Some pictures for a sequence, at places that may be side by side."""
        sequence, count = choose.below(SEQUENCES), choose.below(4)
        place, wanted = choose.below(6), list[VisibleRows]()
        for _ in range(count):
            content = choose.below(6)
            rows = 1 + content * 5 % LONGEST
            wanted.append(VisibleRows(bytes([content]), place, rows, 1 + choose.below(rows)))
            place += 1 + choose.below(3)
        self.tell(f"show {wanted} to {sequence}")
        others = [held for n, held in enumerate(self.shown) if n != sequence]
        needed = {name for held in (wanted, *others) for name in content_names(held)}
        try:
            new = self.pictures.show(sequence, wanted)
        except CacheFullError as error:
            if len(needed) <= SEQUENCES + SPARE:
                raise Fault("cache", f"there is room, but {error}") from None
            self.tell("full")
            return
        for shown, cells in new:
            self.writer.write(_rows(shown), cells)
        self.shown[sequence] = wanted

    @action(weight=6)
    def attend(self, choose: ChoiceSource) -> None:
        """Some tokens of some sequences."""
        sequences = [n for n in self.some(choose) for _ in range(1 + choose.below(4))]
        step = next_step(self.ends, sequences)
        self.tell(f"step {sequences}")
        query = np.random.default_rng(choose.below(1 << 16)).standard_normal((step.size, HEADS, HEAD))
        self._compare(step, query.astype(np.float32))
        for sequence in sequences:
            self.ends[sequence] += 1

    @action()
    def copy_prefix(self, choose: ChoiceSource) -> None:
        source = choose.below(SEQUENCES)
        target, length = (source + 1) % SEQUENCES, choose.below(self.ends[source] + 1)
        self.tell(f"copy {source} [0, {length}) to {target}")
        self.cache.copy_prefix(source, target, length)
        self.ends[target], self.shown[target] = length, list(self.shown[source]) if length else []

    @action()
    def remove(self, choose: ChoiceSource) -> None:
        """A range from a sequence: its pictures go with it, and later ones move down."""
        sequence = choose.below(SEQUENCES)
        low = choose.below(self.ends[sequence] + 1)
        high = low + choose.below(self.ends[sequence] - low + 1)
        self.tell(f"remove {sequence} [{low}, {high})")
        self.cache.remove(sequence, low, high)
        self.shown[sequence] = [
            each if each.position < low else replace(each, position=each.position - (high - low))
            for each in self.shown[sequence]
            if not low <= each.position < high
        ]
        self.ends[sequence] -= high - low

    @action()
    def forget(self, choose: ChoiceSource) -> None:
        sequence = choose.below(SEQUENCES)
        self.tell(f"forget {sequence}")
        self.cache.remove(sequence, 0)
        self.ends[sequence], self.shown[sequence] = 0, []

    def _compare(self, step: Step, query: Array) -> None:
        plan = self.cache.plan(step)
        key = step.size, plan.key
        if key not in self.traced:
            self.traced[key] = TracedPictureAttention(self, plan)
        tokens = list(zip(step.sequences.tolist(), step.positions.tolist(), strict=True))
        seen = [self._seen(*token) for token in tokens]
        found = self.traced[key].run(plan, query)
        if found is None:
            if any(seen):
                raise Fault("cache", "a step of sequences with pictures sees none")
            return
        got, present, after = found
        for i, (sequence, position) in enumerate(tokens):
            flags = (bool(present[i]), bool(after[i]))
            if flags != (bool(seen[i]), bool(seen[i]) and position >= self.shown[sequence][0].position):
                raise Fault("cache", f"{sequence}@{position} is told wrongly what it sees: {flags}")
            if seen[i]:
                what = f"attention of {sequence}@{position}"
                self.compare(got[i], number(query[i], self.cost), seen[i], what)

    def _seen(self, sequence: int, position: int) -> list[Cell]:
        """What a token sees: the last picture and those directly before it; all rows before the first picture."""
        held = self.shown[sequence]
        before = [each for each in held if each.position <= position]
        seen = [(each, each.rows) for each in held]
        if before:
            seen = [(before[-1], before[-1].visible)]
            for each in reversed(before[:-1]):
                if each.position != seen[0][0].position - 1:
                    break
                seen.insert(0, (each, each.visible))
        rows = [_rows(each)[:count].reshape(-1, KV_HEADS, HEAD) for each, count in seen]
        return [
            self.cell(sequence, 0, number(row, self.cost), number(-row, self.cost))
            for part in rows
            for row in part
        ]


@final
class TracedPictureAttention:
    def __init__(self, machine: MediaCrossAttentionMachine, plan: CachePlan) -> None:
        self.ctx = machine.backend.new_context()
        self._bound, at = machine.pictures.bind(self.ctx, plan), self.ctx.layer(0)
        self._query = self.ctx.input().empty(DType.F32, HEAD, HEADS, plan.step.size)
        if not self._bound.is_empty:
            self._result = self._bound.get(at, 0).attend(at, self._query, SCALE)

    def run(self, plan: CachePlan, query: Array) -> tuple[Array, Array, Array] | None:
        """Attention, and the leaves `present` and `after`; None if no token sees a picture."""
        self._bound.fill(plan)
        self._query.from_floats(query)
        if self._bound.is_empty:
            return None
        self.ctx.compute(self._result)
        present, after = (leaf.numpy().reshape(-1) for leaf in (self._bound.present, self._bound.after))
        return self._result.numpy(), present, after


def _rows(shown: VisibleRows) -> Array:
    """The rows of a picture, (rows, features), by its content."""
    rng = np.random.default_rng(shown.content[0])
    return rng.standard_normal((shown.rows, KV_HEADS * HEAD)).astype(np.float32)


def _keys_and_values(ctx: Context, rows: Tensor, put: Any) -> None:
    heads = rows.reshape(ctx, HEAD, KV_HEADS, rows.dim(1))
    put(ctx.layer(0), 0, heads, heads.neg(ctx))


@scenario("cache", smoke=3, default=20, nightly=200)
def engine_picture_cache(lab: Lab, draw: Draw) -> None:
    """The engine's cache of pictures: several for a sequence, shared, moved, and seen as transformers computes it."""
    walk(MediaCrossAttentionMachine, lab, draw, 30)
