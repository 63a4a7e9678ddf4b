"""Callbacks of ggml in a run, which stop it or note the times of its ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, final

from backbay.plugin import Cancel, Timing, stop_when_cancelled

from ..library.abi import Ptr, ffi, tensor_address

ABORTED = 1  # of enum ggml_status, where 0 is success


@final
class StopFlag:
    """A flag in C, with the callback that reads it; ggml calls it between two ops."""

    def __init__(self) -> None:
        self.data: Ptr = ffi.new("char[2]")
        # strlen of the flag is true once its first byte is set: a callback without Python.
        self.callback: Any = ffi.cast("void *", ffi.addressof(ffi.dlopen(None), "strlen"))

    @contextmanager
    def watching(self, cancel: Cancel | None) -> Iterator[None]:
        """While this lasts, a set `cancel` raises the flag."""
        try:
            with stop_when_cancelled(cancel, lambda: self._set(b"\1")):
                yield
        finally:
            self._set(b"\0")

    def _set(self, value: bytes) -> None:
        self.data[0] = value


@dataclass(frozen=True)
class OpOrigin:
    """An op of ggml as a clock finds it again."""

    node: int | None  # the node of our graph that it belongs to
    device: str
    merges: bool = False  # whether ggml may compute it together with the op after it

    def timing(self, seconds: float) -> Timing:
        return Timing(() if self.node is None else (self.node,), seconds, self.device)


@final
class OpClock:
    """Notes when ops end. ggml asks its callbacks whether to go on, so they also look at `cancel`.

    On devices, ops run in parts of so many, which are computed before ggml asks.
    """

    def __init__(self, cancel: Cancel | None, part: int = 1) -> None:
        self._cancel, self._part = cancel, part
        self._seen = 0
        self._raised: list[BaseException] = []
        self._begun = 0.0
        self._ends: list[float] = []
        self._parts: list[tuple[int, float]] = []
        onerror: Any = self._stop
        self.after_op = ffi.callback("bool(void *)", self._note_end, onerror=onerror, error=True)
        self.around_op = ffi.callback("bool(ggml_tensor *, bool, void *)", self._note_part, onerror=onerror)

    def start(self) -> None:
        self._begun = perf_counter()

    def check(self) -> None:
        """Raise what a callback raised: Ctrl-C, or an error of `cancel`."""
        if self._raised:
            raise self._raised[0]

    def in_order(self, ops: Sequence[OpOrigin]) -> list[Timing]:
        """The times of ops that ran one after the other, from each end to the next; none if their number is another."""
        if len(ops) != len(self._ends):
            ops = [op for op in ops if not op.merges]
        if len(ops) != len(self._ends):  # this libggml skips ops, or merges others
            return []
        seconds = [end - begun for begun, end in pairwise((self._begun, *self._ends))]
        return [op.timing(taken) for op, taken in zip(ops, seconds, strict=True)]

    def one_by_one(self, ops: Mapping[int, OpOrigin]) -> list[Timing]:
        """The times of ops that ran alone, found by their addresses; views are not among them."""
        return [ops[place].timing(seconds) for place, seconds in self._parts if place in ops]

    def _note_end(self, data: Ptr) -> bool:
        """Called after an op; the answer tells whether to stop."""
        self._ends.append(perf_counter())
        return self._is_cancelled()

    def _note_part(self, tensor: Ptr, before: bool, data: Ptr) -> bool:
        """Called before an op, where the answer ends a part, and after a part, where it tells whether to go on."""
        if not before:
            self._parts.append((tensor_address(tensor), perf_counter() - self._begun))
            return not self._is_cancelled()
        self.start()
        self._seen += 1
        return self._seen % self._part == 0 or self._is_cancelled()

    def _is_cancelled(self) -> bool:
        return self._cancel is not None and self._cancel.is_set()

    def _stop(self, kind: object, error: BaseException, trace: object) -> None:
        self._raised.append(error)
