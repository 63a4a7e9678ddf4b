"""Random lives of the caches of encoder outputs and states, against results computed anew from all tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from cache_layers import Cross, Mamba, output_of, run_of, step_of
from cache_lives import INSTALLED, LIVES, fill_once, live, lives_on, permuted

from backbay import BackbayError, DType
from backbay_conformance.plugin import ChoiceSource, Fault, Lab, Machine, action, lab_for, run_machine
from backbay_engine.cache import CacheSizes, EncoderCache, RecurrentCache
from backbay_engine.cache.attention.cross_attention import PositionRun
from backbay_engine.cache.attention.encoder import BoundEncoderCache
from backbay_engine.cache.cells.cell_table import TokenRun
from backbay_engine.cache.cells.storage import CellStorage
from backbay_engine.cache.recurrent import SequenceStates
from backbay_engine.errors import CacheShiftError
from backbay_engine.steps.step import Step

SEQUENCES = 3


class Life(Machine):
    """The base of both lives: sequences and their ends."""

    def __init__(self, lab: Lab, choose: ChoiceSource) -> None:
        super().__init__(lab, choose)
        self.backend = lab.fresh()
        self.ends = [0] * SEQUENCES

    def some(self, choose: ChoiceSource) -> list[int]:
        first, count = choose.below(SEQUENCES), 1 + choose.below(SEQUENCES)
        return [(first + n) % SEQUENCES for n in range(count)]

    def step(self, parts: Sequence[tuple[int, int]]) -> Step:
        """The next tokens of sequences."""
        self.tell(f"step {parts} from {self.ends}")
        return step_of(*[token for n, count in parts for token in run_of(n, self.ends[n], count)])

    def range(self, choose: ChoiceSource) -> tuple[int, int, int]:
        """A sequence, and a range of its positions."""
        sequence = choose.below(SEQUENCES)
        low = choose.below(self.ends[sequence] + 1)
        return sequence, low, low + choose.below(self.ends[sequence] - low + 1)

    def require(self, holds: bool, message: str) -> None:
        if not holds:
            raise Fault("cache", message)


# -- encoders --------------------------------------------------------------------------------------------


@dataclass
class Put:
    """An encoder's output and its position; sequences that share the output share the data."""

    data: np.ndarray
    position: int


class EncoderLife(Life):
    """Every token attends to the output of its sequence, and to no other."""

    def __init__(self, lab: Lab, choose: ChoiceSource) -> None:
        super().__init__(lab, choose)
        self.length = 1 + choose.below(20)
        self.cache = EncoderCache(self.length)
        self.cache.open(self.backend, CacheSizes(SEQUENCES, 64, 16, DType.F32))
        self.cross = Cross(self.backend, self.cache)
        self.puts: list[Put | None] = [None] * SEQUENCES
        self.expected: dict[int, int] = {}

    def close(self) -> None:
        for sequence in range(SEQUENCES):
            self.cache.remove(sequence, 0)
        used = self.cache.used
        self.cache.close()
        self.backend.close()
        self.require(used == 0, f"{used} cells are in use after all sequences were removed")

    @action(lambda life: None in life.puts, weight=3)
    def expect(self, choose: ChoiceSource) -> None:
        free = [n for n, put in enumerate(self.puts) if put is None]
        sequence, count = free[choose.below(len(free))], 1 + choose.below(self.length)
        self.tell(f"expect {count} for {sequence}")
        self.cache.expect(sequence, count)
        self.expected[sequence] = count

    @action(weight=6)
    def attend(self, choose: ChoiceSource) -> None:
        """Tokens of some sequences, with their expected outputs."""
        step = self.step([(n, 1 + choose.below(3)) for n in self.some(choose)])
        made: dict[int, np.ndarray] = {}
        for sequence in dict.fromkeys(step.sequences.tolist()):
            if sequence in self.expected:
                made[sequence] = output_of(self.expected.pop(sequence), choose.below(1 << 16))
                self.puts[sequence] = Put(made[sequence], self.ends[sequence])
        got = self.cross.step(step, made)
        self.require(bool(np.isfinite(got).all()), "a token got what is no number")
        for i, sequence in enumerate(step.sequences.tolist()):
            put = self.puts[sequence]
            self.require(self.cross.present[i] == (put is not None), f"token {i} is told wrongly what it has")
            if put is not None:
                np.testing.assert_allclose(got[i], self.cross.expected(i, put.data), atol=1e-4)
            self.ends[sequence] += 1
        self.check_used()

    @action()
    def fail(self, choose: ChoiceSource) -> None:
        """A step that is planned and rolled back: its outputs are still expected."""
        step = self.step([(n, 1 + choose.below(2)) for n in self.some(choose)])
        self.cache.plan(step)
        self.cache.rollback(step)
        self.check_used()

    @action(weight=2)
    def copy_prefix(self, choose: ChoiceSource) -> None:
        source, length, _ = self.range(choose)
        target = choose.below(SEQUENCES)
        self.tell(f"copy {source} [0, {length}) to {target}")
        self.cache.copy_prefix(source, target, length)
        put = self.puts[source]
        self.puts[target] = put if put is not None and put.position < length else None
        self.ends[target] = length
        if source != target:
            self.expected.pop(target, None)
        self.check_used()

    @action(weight=2)
    def remove(self, choose: ChoiceSource) -> None:
        sequence, low, high = self.range(choose)
        self.tell(f"remove {sequence} [{low}, {high})")
        self.cache.remove(sequence, low, high)
        self.forget(sequence, low, high)

    @action()
    def go_back(self, choose: ChoiceSource) -> None:
        sequence, low, _ = self.range(choose)
        self.tell(f"remove {sequence} from {low} on")
        self.cache.remove(sequence, low)
        self.expected.pop(sequence, None)
        self.forget(sequence, low, self.ends[sequence])

    @action()
    def wipe(self, choose: ChoiceSource) -> None:
        sequence = choose.below(SEQUENCES)
        self.tell(f"wipe {sequence}")
        self.cache.wipe(sequence)
        self.expected.pop(sequence, None)
        self.forget(sequence, 0, self.ends[sequence])

    @action()
    def reserve(self, choose: ChoiceSource) -> None:
        step = step_of(*run_of(0, 0, 1 + choose.below(8)))
        self.tell(f"reserve {step.size}")
        with self.backend.new_context() as ctx:
            self.require(self.cache.bind(ctx, self.cache.worst(step)).present.dim(2) == step.size, "too few")
        self.check_used()

    def forget(self, sequence: int, low: int, high: int) -> None:
        """Remove positions of a sequence from the plain history."""
        put = self.puts[sequence]
        if put is not None and put.position >= low:
            moved = Put(put.data, put.position - (high - low))
            self.puts[sequence] = None if put.position < high else moved
        self.ends[sequence] -= high - low
        self.check_used()

    def check_used(self) -> None:
        held = {id(put.data): len(put.data) for put in self.puts if put is not None}
        self.require(self.cache.used == sum(held.values()), f"{self.cache.used} cells are used, not {held}")


# -- states ----------------------------------------------------------------------------------------------


class RecurrentLife(Life):
    """Every token's convolution and state equal those computed from all earlier tokens."""

    def __init__(self, lab: Lab, choose: ChoiceSource) -> None:
        super().__init__(lab, choose)
        self.checkpoints, interval = choose.below(4), 1 + choose.below(4)
        self.cache = RecurrentCache(checkpoints=self.checkpoints, interval=interval)
        self.cache.open(self.backend, CacheSizes(SEQUENCES, 64, 16))
        self.layer = Mamba(self.backend, self.cache)
        self.layer.fed = {n: [] for n in range(SEQUENCES)}
        self.tell(f"{self.checkpoints} checkpoints, {interval} apart")

    def close(self) -> None:
        for sequence in range(SEQUENCES):
            self.cache.remove(sequence, 0)
        used = self.cache.used
        self.cache.close()
        self.backend.close()
        self.require(used == 0, f"{used} rows are in use after all sequences were removed")

    @action(weight=6)
    def go_on(self, choose: ChoiceSource) -> None:
        """Equally many tokens of some sequences."""
        count = 1 + choose.below(4)
        parts = [(n, count) for n in self.some(choose)]
        self.tell(f"step {parts} from {self.ends}")
        self.layer.step(*parts)
        for sequence, _ in parts:
            self.ends[sequence] += count
        self.check()

    @action()
    def fail(self, choose: ChoiceSource) -> None:
        count = 1 + choose.below(3)
        step = self.step([(n, count) for n in self.some(choose)])
        self.cache.plan(step)
        self.cache.rollback(step)
        self.check()

    @action(weight=2)
    def copy_prefix(self, choose: ChoiceSource) -> None:
        source, length, _ = self.range(choose)
        target = choose.below(SEQUENCES)
        self.tell(f"copy {source} [0, {length}) to {target}")
        self.cache.copy_prefix(source, target, length)
        self.layer.fed[target] = self.layer.fed[source][:length]
        self.settle(target, length)

    @action(weight=2)
    def go_back(self, choose: ChoiceSource) -> None:
        sequence, low, _ = self.range(choose)
        if choose.below(2):
            low = self.cache.last_resumable(sequence, low)
        self.tell(f"remove {sequence} from {low} on")
        self.cache.remove(sequence, low)
        del self.layer.fed[sequence][low:]
        self.settle(sequence, low)

    @action()
    def shift(self, choose: ChoiceSource) -> None:
        """A range in the middle cannot be removed: later states depend on it."""
        sequence, low, high = self.range(choose)
        if not low < high < self.ends[sequence]:
            return
        self.tell(f"remove {sequence} [{low}, {high})")
        with pytest.raises(CacheShiftError):
            self.cache.remove(sequence, low, high)
        self.check()

    def settle(self, sequence: int, end: int) -> None:
        """A sequence has a new end; if its state there is dropped, the error says so, and the sequence is emptied."""
        self.ends[sequence] = end
        if not self.cache.can_resume(sequence, end):
            with pytest.raises(BackbayError, match="its state there is dropped"):
                self.cache.plan(step_of((sequence, end)))
            self.cache.remove(sequence, 0)
            del self.layer.fed[sequence][:]
            self.ends[sequence] = 0
        self.check()

    def check(self) -> None:
        for sequence, end in enumerate(self.ends):
            places = [n for n in range(end + 2) if self.cache.can_resume(sequence, n)]
            self.require(0 in places and end in places, f"sequence {sequence} of {end} goes on at {places}")
            self.require(max(places) == end, f"sequence {sequence} of {end} could go on at {max(places)}")
            self.require(len(places) <= self.checkpoints + 3, f"sequence {sequence} keeps {places}")
            for n in range(end + 1):
                last = max(place for place in places if place <= n)
                self.require(self.cache.last_resumable(sequence, n) == last, f"{sequence} back from {n}")


# -- on every backend ------------------------------------------------------------------------------------

KINDS = [EncoderLife, RecurrentLife]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", INSTALLED)
def test_caches_of_all_kinds_live_on_every_backend(kind: type[Life], name: str) -> None:
    live(kind, lab_for(name), "lives", 0, lives_on(name))


@pytest.mark.parametrize("kind", KINDS)
def test_caches_of_all_kinds_live_where_values_are_permuted_and_masks_padded(kind: type[Life]) -> None:
    live(kind, lab_for(permuted(8, 4, DType.F32, DType.F16)), "lives", 100, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_caches_of_all_kinds_live_under_hypothesis(kind: type[Life]) -> None:
    assert run_machine(kind, "cpu_ref", seed=5, steps=20, examples=LIVES or 6) == []


# -- faults that a life must notice ----------------------------------------------------------------------


def what_was_expected_outlives_the_sequence(patch: pytest.MonkeyPatch) -> None:
    removal = EncoderCache.removal
    patch.setattr(EncoderCache, "removal", lambda self, n, begin, end=None: removal(self, n, begin, 1 << 30))


def outputs_are_seen_by_their_neighbours(patch: pytest.MonkeyPatch) -> None:
    def first_cells(self: EncoderCache, run: TokenRun) -> list[PositionRun]:
        cells = [(0, shown.rows) for shown in self.shown(run.sequence)]
        return [PositionRun(run.position, run.position + run.count, cells)] if cells else []

    patch.setattr(EncoderCache, "_views", first_cells)


def masks_are_those_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    fill_once(patch, BoundEncoderCache)


def wiping_reaches_what_others_share(patch: pytest.MonkeyPatch) -> None:
    def wipe(self: EncoderCache, sequence: int) -> None:
        for shown, region in self._shown[sequence] if self.storage.layers else ():
            CellStorage.wipe(self.storage, self.cells_of(region, shown.rows))
        self.remove(sequence, 0)

    patch.setattr(EncoderCache, "wipe", wipe)


def states_are_written_where_they_are_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecurrentCache, "_advance", advance_in_place)


def advance_in_place(self: RecurrentCache, sequence: int, count: int) -> int:
    """A faulty `_advance`, which overwrites the latest state's row."""
    track = self._sequences[sequence]
    row = track.states[-1][1] if track.states else self._users.index(0, 1)
    track.end += count
    self._replace(track, [*track.states[:-1], (track.end, row)])
    return row


def going_back_finds_the_state_before(patch: pytest.MonkeyPatch) -> None:
    at = SequenceStates.at

    def earlier(self: SequenceStates, position: int) -> int | None:
        found = [row for n, row in self.states if n < position]
        return found[-1] if at(self, position) and len(found) > 1 else at(self, position)

    patch.setattr(SequenceStates, "at", earlier)


@pytest.mark.parametrize(
    ("kind", "plant"),
    [
        (EncoderLife, what_was_expected_outlives_the_sequence),
        (EncoderLife, outputs_are_seen_by_their_neighbours),
        (EncoderLife, masks_are_those_of_the_step_before),
        (EncoderLife, wiping_reaches_what_others_share),
        (RecurrentLife, states_are_written_where_they_are_read),
        (RecurrentLife, going_back_finds_the_state_before),
    ],
)
def test_such_a_life_notices_what_is_wrong(
    kind: type[Life], plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Fault):
        live(kind, lab_for("cpu_ref"), "lives", 0, 40)
