"""The cache of recurrent states: of convolutions and state-space models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple, final

import numpy as np

from backbay import BackbayError, Backend, Context, DType, ShapeError, Tensor

from ..errors import CacheShiftError
from ..steps.step import Ints, Step
from .cells.cell_table import TokenRun, token_runs
from .cells.contents import CacheContents
from .contract import (
    AttentionOperands,
    BoundCache,
    CachePlan,
    CacheSizes,
    SingleCache,
    own_plan,
    require_next_positions,
    require_prefix,
)

ZEROS = 0  # the row of the initial state; never written


@dataclass(frozen=True)
class RecurrentPlan(CachePlan):
    sources: Ints
    targets: Ints


class StoredState(NamedTuple):
    """A recurrent state in the cache: the positions before it, its row, and whether several tokens of a prompt made it in a step."""

    position: int
    row: int
    of_prompt: bool


@dataclass
class SequenceStates:
    """A sequence: its length, and its states after some positions, ascending."""

    end: int
    states: list[StoredState]

    def at(self, position: int) -> int | None:
        """The row of the state after `position` positions."""
        if position == 0:
            return ZEROS
        for state in reversed(self.states):
            if state.position == position:
                return state.row
        return None


@final
class RecurrentCache(SingleCache):
    """The state of each sequence in each layer, and a few earlier states to go back to.

    A step reads its states from one row and writes them to another: a failed step changes nothing, and going back
    or sharing a prefix moves no data. Beside the latest state of a sequence, the cache keeps its last `checkpoints`
    states that are `interval` or more positions apart, or end a prompt: made by several of its tokens, and continued by
    one, or by an answer. A sequence can only be resumed at a kept state: the one before a step is, until the next
    step, so that wrong guesses are taken back.

    Models read and write states by name, through the bound cache of a batch:

        h = bound.state(ctx, layer, "ssm", 16, 64)      # (16, 64, sequences), zeros where a sequence begins
        bound.keep(ctx, layer, "ssm", h_after)          # the same shape
        x = bound.convolved(ctx, layer, x, taps=4)      # (3 + tokens, channels, sequences), as ssm_conv takes it
        whole, rows = bound.all_states(ctx, layer, "ssm", 16, 64)   # as ssm_scan takes its state and ids
    """

    def __init__(self, *, checkpoints: int = 2, interval: int = 256) -> None:
        if checkpoints < 0 or interval < 1:
            raise ValueError(
                f"checkpoints must be at least 0 and interval at least 1, got {checkpoints}, {interval}"
            )
        self.checkpoints, self.interval = checkpoints, interval

    @property
    def is_uniform(self) -> bool:
        return True

    @property
    def used(self) -> int:
        return sum(users > 0 for users in self._users) if self.is_open else 0

    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        self.check_closed(sizes)
        self._backend, self._ctx, self._sizes = backend, backend.new_context(), sizes
        self.rows = 1 + sizes.sequences * (self.checkpoints + 2)  # the latest state, and the next one
        self._users = [0] * self.rows
        self._sequences = [SequenceStates(0, []) for _ in range(sizes.sequences)]
        self._leaves: dict[tuple[int, str], tuple[Tensor, tuple[int, ...]]] = {}

    def close(self) -> None:
        if self.is_open:
            self._ctx.close()
            self._sizes = None

    # -- steps -------------------------------------------------------------------------------------------

    def plan(self, step: Step) -> RecurrentPlan:
        runs = token_runs(step)
        if len({run.count for run in runs}) > 1 or len({run.sequence for run in runs}) < len(runs):
            raise BackbayError(
                "a recurrent cache takes equally many tokens of each sequence in a step, side by side, got "
                f"{[(run.sequence, run.count) for run in runs]}; split the step"
            )
        sources = []
        for run in runs:
            held = self._sequence(run.sequence)
            row = held.at(held.end)
            require_next_positions(run.sequence, run.position, held.end)
            if row is None:
                raise BackbayError(
                    f"sequence {run.sequence} cannot continue at position {held.end}: its state there is "
                    "dropped; remove the whole sequence"
                )
            sources.append(row)
        targets = [self._advance(run, run.count > 1 and run.sequence not in step.answering) for run in runs]
        return self._planned(step, sources, targets)

    def worst(self, step: Step) -> RecurrentPlan:
        count = len(token_runs(step))
        return self._planned(step, [ZEROS] * count, list(range(1, count + 1)))

    def bind(self, ctx: Context, plan: CachePlan) -> BoundRecurrentCache:
        return BoundRecurrentCache(self, ctx, own_plan(RecurrentPlan, plan))

    def _planned(self, step: Step, sources: list[int], targets: list[int]) -> RecurrentPlan:
        key = ("recurrent", len(targets))
        return RecurrentPlan(step, key, np.array(sources, np.int32), np.array(targets, np.int32))

    def _advance(self, run: TokenRun, of_prompt: bool) -> int:
        """Take a free row for the state after a step; drop states that are no checkpoints."""
        held = self._sequences[run.sequence]
        kept = [state for state, after in pairwise(held.states) if self._is_checkpoint(held, state, after)]
        spare = len(kept) - self.checkpoints
        latest = held.states[-1:]
        self._replace(held, [*kept[max(spare, 0) :], *latest])
        row = self._users.index(0, 1)
        held.end += run.count
        self._replace(held, [*held.states, StoredState(held.end, row, of_prompt)])
        return row

    def _is_checkpoint(self, held: SequenceStates, state: StoredState, after: StoredState) -> bool:
        """Whether a state is at least `interval` positions after the previous one, or ends a prompt."""
        if state.of_prompt and not after.of_prompt:
            return True
        before = max((each.position for each in held.states if each.position < state.position), default=0)
        return state.position - before >= self.interval

    # -- sequences -------------------------------------------------------------------------------------

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        origin, held = self._sequence(source), self._sequence(target)
        require_prefix(source, length, origin.end)
        self._replace(held, [state for state in origin.states if state.position <= length])
        held.end = length

    def can_resume(self, sequence: int, position: int) -> bool:
        held = self._sequence(sequence)
        return 0 <= position <= held.end and held.at(position) is not None

    def last_resumable(self, sequence: int, position: int) -> int:
        return max((n for n, *_ in self._sequence(sequence).states if n <= position), default=0)

    def removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        held = self._sequence(sequence)
        begin, end = max(begin, 0), held.end if end is None else min(end, held.end)
        if begin >= end:
            return lambda: None
        if end < held.end:
            raise CacheShiftError(
                f"sequence {sequence}: positions [{begin}, {end}) cannot be removed: later states depend "
                "on them"
            )

        def cut() -> None:
            self._replace(held, [state for state in held.states if state.position <= begin])
            held.end = begin

        return cut

    def contents(self, sequence: int) -> CacheContents:
        held = self._sequence(sequence)
        row = held.at(held.end)
        if row is None:
            raise BackbayError(
                f"sequence {sequence} cannot be saved: its state after {held.end} positions is dropped"
            )
        found = {}
        for (layer, name), (leaf, shape) in self._leaves.items() if held.end else ():
            with self._backend.new_context() as ctx:
                ids = ctx.input().from_ints([row], 1)
                state = leaf.rows(ctx.layer(layer), ids)
                ctx.forward(state).compute(state)
                found[f"{name}.{layer}"] = state.numpy().reshape(shape[::-1])
        return CacheContents(found, {"end": held.end})

    def restore(self, sequence: int, contents: CacheContents) -> None:
        held, end = self._sequence(sequence), contents.number("end")
        arrays = [
            (layer, leaf, contents.array(f"{name}.{layer}", shape[::-1]))
            for (layer, name), (leaf, shape) in self._leaves.items()
            if end
        ]
        self._replace(held, [])
        row = self._users.index(0, 1)
        for layer, leaf, array in arrays:
            with self._backend.new_context() as ctx:
                host = ctx.input()
                ids, state = host.from_ints([row], 1), host.from_floats(array, leaf.dim(0), 1)
                ctx.forward(leaf.set_rows(ctx.layer(layer), state, ids)).compute()
        held.end = end
        states = [StoredState(end, row, of_prompt=True)]  # so that it stays as a checkpoint
        self._replace(held, states if end else [])

    def _sequence(self, sequence: int) -> SequenceStates:
        self.check(sequence)
        return self._sequences[sequence]

    def _replace(self, held: SequenceStates, states: list[StoredState]) -> None:
        for state in states:
            self._users[state.row] += 1
        for state in held.states:
            self._users[state.row] -= 1
        held.states = states

    def leaf(self, layer: int, name: str, shape: tuple[int, ...]) -> Tensor:
        """All rows of a state, (width, rows), allocated at the first call."""
        self.check()
        found = self._leaves.get((layer, name))
        if found is None:
            made = self._ctx.layer(layer).zeros(DType.F32, prod(shape), self.rows)
            found = self._leaves[layer, name] = made, shape
        if found[1] != shape:
            raise ShapeError(f"layer {layer}: state {name!r} is {list(found[1])}, got {list(shape)}")
        return found[0]


@final
class BoundRecurrentCache(BoundCache):
    def __init__(self, cache: RecurrentCache, ctx: Context, plan: RecurrentPlan) -> None:
        self._cache, self.sequences = cache, len(plan.sources)
        self.tokens = plan.step.size // max(self.sequences, 1)  # of each sequence
        host = ctx.input()
        self._sources, self._targets = (host.empty(DType.I32, self.sequences) for _ in range(2))
        self.fill(plan)

    def fill(self, plan: CachePlan) -> None:
        plan = own_plan(RecurrentPlan, plan)
        self._sources.from_bytes(plan.sources)
        self._targets.from_bytes(plan.targets)

    def state(self, ctx: Context, layer: int, name: str, *shape: int) -> Tensor:
        """The states before the step, f32 (*shape, sequences)."""
        states = self._cache.leaf(layer, name, shape).rows(ctx, self._sources)
        return states.reshape(ctx, *shape, self.sequences)

    def all_states(self, ctx: Context, layer: int, name: str, *shape: int) -> tuple[Tensor, Tensor]:
        """All rows, f32 (*shape, rows), and the rows of the states before the step, i32 (sequences,)."""
        leaf = self._cache.leaf(layer, name, shape)
        return leaf.reshape(ctx, *shape, self._cache.rows), self._sources

    def keep(self, ctx: Context, layer: int, name: str, value: Tensor) -> None:
        """Store the states after the step, (*shape, sequences)."""
        shape = tuple(value.dim(n) for n in range(value.rank - 1))
        rows = (value.reshape if value.is_contiguous else value.contiguous)(ctx, prod(shape), self.sequences)
        ctx.forward(self._cache.leaf(layer, name, shape).set_rows(ctx, rows, self._targets))

    def convolved(self, ctx: Context, layer: int, x: Tensor, taps: int, name: str = "conv") -> Tensor:
        """(channels, tokens) after the last taps - 1 tokens, (taps - 1 + tokens, channels, sequences); stores the end.

        The channels of a token stay neighbours in memory.
        """
        channels = x.dim(0)
        rows = (x.stride(1), x.stride(1) * self.tokens)
        window = x.view(ctx, 0, (channels, self.tokens, self.sequences), rows)
        if taps > 1:
            window = self.state(ctx, layer, name, channels, taps - 1).concat(ctx, window, 1)
            self.keep(ctx, layer, name, window.slice(ctx, 1, self.tokens, self.tokens + taps - 1))
        return window.permute(ctx, 1, 0, 2)

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        raise BackbayError(f"layer {layer} is recurrent: it keeps states, not keys and values")

    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> AttentionOperands:
        raise BackbayError(f"layer {layer} is recurrent: it keeps states, not keys and values")
