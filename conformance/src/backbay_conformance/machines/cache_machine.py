"""The machine of a cache: store, read, shift, copy, remove and defragment, for several sequences and with a window."""

from __future__ import annotations

import numpy as np

from backbay import DType, Spec, Support, ops

from ..fault import Fault
from ..numbers.encoding import Array
from ..numbers.number import Number
from ..suite.lab import Lab
from .cache_graph import CacheSettings, KeyValueCache
from .machine import ChoiceSource, Machine, action
from .token_history import Cell, TokenHistory, attend, attention_cost, number, require_close, rotated, stored

SEQUENCES = 3
KNOWN = (DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0)


def has_cells(machine: CacheMachine) -> bool:
    return bool(machine.history.cells)


class CacheMachine(Machine):
    """Random actions on a cache; attention over it is compared with float64 attention over the plain history."""

    def __init__(self, lab: Lab, choose: ChoiceSource) -> None:
        super().__init__(lab, choose)
        self.backend = lab.fresh()
        self.layout = self._layout(choose)
        self._check_offer()
        self.cache = KeyValueCache(self.backend, self.layout)
        self.cost = attention_cost(self.backend, self.layout.key_type, self.layout.value_type)
        self.history, self.window = TokenHistory(), 0
        self.tell(str(self.layout))

    def close(self) -> None:
        self.cache.close()
        self.backend.close()

    # -- growing -----------------------------------------------------------------------------------------

    @action(weight=6)
    def store(self, choose: ChoiceSource) -> None:
        """Store tokens of one or two sequences; each must see only its own sequence's past."""
        tokens = [1, 2, 3, 5][choose.below(4)]
        free = self.history.free(self.layout.capacity)
        if len(free) < tokens:
            return
        batch = self._batch(choose, tokens)
        order = np.random.default_rng(choose.below(1 << 16))
        cells = [free, list(order.permutation(free)), free[::-1]][choose.below(3)][:tokens]
        query, key, value = self._data(choose, tokens)
        for i, (sequence, position) in enumerate(batch):
            self.history.cells[int(cells[i])] = Cell(
                position,
                {sequence},
                stored(self._turned(key[i], position), self.layout.key_type),
                stored(number(value[i], self.cost), self.layout.value_type),
            )
        self.tell(f"store {', '.join(f'{s}@{p} in {c}' for (s, p), c in zip(batch, cells, strict=True))}")
        self._step(batch, np.array(cells), query, key, value)

    @action(has_cells, weight=2)
    def read_again(self, choose: ChoiceSource) -> None:
        """Store the newest token of a sequence again, in the same cell, with a new query."""
        sequence = self._sequence(choose)
        cell, newest = list(self.history.of(sequence).items())[-1]
        if len(newest.sequences) > 1:
            return
        query, key, value = self._data(choose, 1)
        newest.key = stored(self._turned(key[0], newest.position), self.layout.key_type)
        newest.value = stored(number(value[0], self.cost), self.layout.value_type)
        self.tell(f"read {sequence}@{newest.position} in {cell}")
        self._step([(sequence, newest.position)], np.array([cell]), query, key, value)

    # -- changing ----------------------------------------------------------------------------------------

    @action(has_cells, weight=2)
    def shift(self, choose: ChoiceSource) -> None:
        """Move a sequence's positions from one on by a delta, and rotate their keys in place."""
        sequence = self._sequence(choose)
        cells = self.history.of(sequence)
        if any(len(cell.sequences) > 1 for cell in cells.values()):
            return
        first = choose.below(self.history.next_position(sequence))
        delta = [-1, 2, -3, 40][choose.below(4)]
        moved = {n: cell for n, cell in cells.items() if cell.position >= first}
        room = max((c.position for c in cells.values() if c.position < first), default=-1) + 1
        if not moved or min(cell.position for cell in moved.values()) + delta < room:
            return
        deltas = np.zeros(self.layout.capacity)
        for n, cell in moved.items():
            deltas[n], cell.position = delta, cell.position + delta
        for n, cell in self.history.cells.items():  # all keys are rotated, most by 0, and stored again
            cell.key = stored(self._rotated(cell.key, deltas[n]), self.layout.key_type)
        self.tell(f"shift {sequence}@{first}.. by {delta}")
        self.cache.shift(deltas)

    @action(has_cells)
    def share_prefix(self, choose: ChoiceSource) -> None:
        source, target, end = self._prefix(choose)
        if target is None:
            return
        for cell in self.history.of(source).values():
            if cell.position < end:
                cell.sequences.add(target)
        self.tell(f"share {source}@0..{end} with {target}")

    @action(has_cells, weight=2)
    def copy_prefix(self, choose: ChoiceSource) -> None:
        source, target, end = self._prefix(choose)
        wanted = [(n, cell) for n, cell in self.history.of(source).items() if cell.position < end]
        free = self.history.free(self.layout.capacity)
        if target is None or len(free) < len(wanted):
            return
        runs = [(n, to, 1) for (n, _), to in zip(wanted, free, strict=False)]
        for (_, cell), to in zip(wanted, free, strict=False):
            self.history.cells[to] = Cell(cell.position, {target}, cell.key, cell.value)
        self.tell(f"copy {source}@0..{end} to {target}: {runs}")
        self.cache.move(runs)

    @action(has_cells)
    def remove_range(self, choose: ChoiceSource) -> None:
        sequence = self._sequence(choose)
        end = self.history.next_position(sequence)
        low = choose.below(end)
        high = low + 1 + choose.below(end - low)
        self.history.remove(sequence, low, high)
        self.tell(f"remove {sequence}@{low}..{high}")

    @action(has_cells)
    def defragment(self, choose: ChoiceSource) -> None:
        """Move cells down to fill the gaps, in runs that may overlap."""
        runs: list[tuple[int, int, int]] = []
        for target, source in enumerate(sorted(self.history.cells)):
            last = runs[-1] if runs else None
            if last and last[0] + last[2] == source and last[1] + last[2] == target:
                runs[-1] = (last[0], last[1], last[2] + 1)
            elif source != target:
                runs.append((source, target, 1))
        self.history.cells = {i: self.history.cells[n] for i, n in enumerate(sorted(self.history.cells))}
        self.tell(f"defragment {runs}")
        if runs:
            self.cache.move(runs)

    @action(has_cells)
    def make_room(self, choose: ChoiceSource) -> None:
        """Move all cells up by a few, in one copy whose source and target overlap."""
        extent = max(self.history.cells) + 1
        by = 1 + choose.below(4)
        if extent + by > self.layout.capacity:
            return
        self.history.cells = {n + by: cell for n, cell in self.history.cells.items()}
        self.tell(f"move cells 0..{extent} up by {by}")
        self.cache.move([(0, by, extent)])

    @action(has_cells)
    def change_window(self, choose: ChoiceSource) -> None:
        """Change the number of positions that tokens see, and remove older positions."""
        self.window = [0, 4, 2][choose.below(3)]
        self.tell(f"window {self.window}")
        for sequence in self.history.sequences() if self.window else ():
            self.history.remove(sequence, 0, self.history.next_position(sequence) - self.window)

    @action(lambda machine: len(machine.cache.steps) > 1)
    def forget_steps(self, choose: ChoiceSource) -> None:
        self.tell("close the kept steps")
        self.cache.forget_steps()

    @action(has_cells, weight=2)
    def look_inside(self, choose: ChoiceSource) -> None:
        self.tell("look inside")
        keys = np.asarray(self.cache.key.numpy(), np.float64)
        values = np.asarray(self.cache.value.numpy(), np.float64)
        values = values.T if self.cache.config.permuted_v else values
        for n, cell in self.history.cells.items():
            for what, have, want in (("key", keys[n], cell.key), ("value", values[n], cell.value)):
                require_close(have.reshape(want.shape), want, f"the {what} in cell {n}")

    # -- parts -------------------------------------------------------------------------------------------

    def _step(
        self, batch: list[tuple[int, int]], cells: Array, query: Array, key: Array, value: Array
    ) -> None:
        """Store and attend; compare each token's result."""
        history = self._history_extent()
        mask = np.full((len(batch), history), -np.inf)
        seen = [self.history.seen_by(sequence, position, self.window) for sequence, position in batch]
        for row, visible in zip(mask, seen, strict=True):
            row[visible] = 0
        positions = np.array([position for _, position in batch])
        step = self.cache.step(len(batch), history)
        got = step.run(query, key, value.reshape(len(batch), -1), positions, cells, mask)
        for i, (sequence, position) in enumerate(batch):
            visible_cells = [self.history.cells[n] for n in seen[i]]
            expected = attend(self._turned(query[i], position), visible_cells, self.layout.head**-0.5)
            require_close(got[i].reshape(expected.shape), expected, f"attention of {sequence}@{position}")

    def _batch(self, choose: ChoiceSource, tokens: int) -> list[tuple[int, int]]:
        first = choose.below(SEQUENCES)
        other = (first + choose.below(2)) % SEQUENCES
        split = choose.below(tokens + 1)
        batch: list[tuple[int, int]] = []
        for i in range(tokens):
            sequence = first if i < split else other
            mine = [position for s, position in batch if s == sequence]
            batch.append((sequence, mine[-1] + 1 if mine else self.history.next_position(sequence)))
        return batch

    def _prefix(self, choose: ChoiceSource) -> tuple[int, int | None, int]:
        """A sequence, another one without cells (if any), and the end of a prefix."""
        source = self._sequence(choose)
        end = 1 + choose.below(self.history.next_position(source))
        taken = self.history.sequences()
        target = next((s for s in range(SEQUENCES) if s not in taken), None)
        return source, target, end

    def _sequence(self, choose: ChoiceSource) -> int:
        taken = self.history.sequences()
        return taken[choose.below(len(taken))]

    def _history_extent(self) -> int:
        """The end of the used cells, rounded up to the backend's padding and to a multiple of 8."""
        step = int(np.lcm(8, self.cache.config.cache_padding))
        return -(-(max(self.history.cells) + 1) // step) * step

    def _data(self, choose: ChoiceSource, tokens: int) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng(choose.below(1 << 16))
        layout = self.layout
        heads = (layout.heads, layout.kv_heads, layout.kv_heads)
        query, key, value = (rng.standard_normal((tokens, n, layout.head)).astype(np.float32) for n in heads)
        query /= 4  # rounding then changes scores little, and bounds are tight
        return query, key, value

    def _turned(self, x: Array, position: int) -> Number:
        return self._rotated(number(x, self.cost), position)

    def _rotated(self, x: Number, position: float) -> Number:
        return rotated(x, position, self.layout.dim, self.layout.base, self.layout.mode)

    def _check_offer(self) -> None:
        """Raise Fault if set_rows cannot write a type that cache_config() offers.

        A backend without set_rows for f32 has no caches, so its cache_config() promises nothing.
        """
        for dtype in (self.layout.key_type, self.layout.value_type):
            written = self._write(dtype)
            if not written and self._write(DType.F32):
                self.backend.close()
                raise Fault(
                    "cache", f"cache_config() offers {dtype}, which set_rows cannot write: {written.reason}"
                )

    def _write(self, dtype: DType) -> Support:
        given = [Spec(dtype, (32, 8)), Spec(DType.F32, (32, 1)), Spec(DType.I32, (1,))]
        return self.backend.supports(ops.set_rows, given)

    def _layout(self, choose: ChoiceSource) -> CacheSettings:
        """A drawn layout with heads of 32 elements, whole blocks of a quantized type."""
        config = self.backend.cache_config()
        dtypes = [
            dtype
            for dtype in (*KNOWN, *config.dtypes)
            if dtype in config.dtypes and 32 % dtype.block_size == 0
        ]
        dtypes = list(dict.fromkeys(dtypes))
        key = dtypes[choose.below(len(dtypes))]
        plain = [dtype for dtype in dtypes if not dtype.is_quantized]
        values = plain if config.permuted_v else dtypes
        kv_heads = 1 + choose.below(2)
        step = int(np.lcm(8, config.cache_padding))
        return CacheSettings(
            head=32,
            heads=kv_heads * (1 + choose.below(2)),
            kv_heads=kv_heads,
            capacity=-(-32 // step) * step,
            key_type=key,
            value_type=key if key in values else values[choose.below(len(values))],
            mode="neox" if choose.below(2) else "normal",
            dim=(32, 16)[choose.below(2)],
            base=(10000.0, 500.0)[choose.below(2)],
        )
