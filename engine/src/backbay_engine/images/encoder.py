"""The encoder: a model of its own, whose contexts are kept and computed again for pictures of the same shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Event, RLock
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

import backbay
from backbay import Backend, BackendMemory, BackendParams
from backbay.plugin import Cancel, Entry, Progress

from .contract import VisionFamily
from .passes import Pass
from .prepared import Prepared

Rows: TypeAlias = NDArray[np.float32]
Turn: TypeAlias = Callable[[], AbstractContextManager[Any]]
KEPT = 8  # passes
NODE = 768  # bytes that core and a backend take for a traced node beside its data, measured


@final
class Encoder:
    """An encoder on a backend of its own. It is reserved when it is made, and encodes once it is loaded.

    Pictures of one shape are encoded together, up to as many positions as the largest picture has. The least recently
    used pass is dropped beyond KEPT passes, or beyond the reserved memory.
    """

    def __init__(
        self,
        family: VisionFamily,
        backend: str | type[Backend] | None = None,
        params: BackendParams | None = None,
    ) -> None:
        self.family = family
        self._passes: OrderedDict[Hashable, Pass] = OrderedDict()
        self._lock = RLock()  # the garbage collector may call close in the thread that encodes
        self.backend = backbay.open(family.file, backend, params)
        try:
            self.network = family.network(self.backend)
            self._reserve()
        except MemoryError as error:
            with self.backend:
                self.backend.refuse_memory(error)
        except BaseException:
            self.backend.close()
            raise

    def load(self, progress: Progress | None = None, cancel: Cancel | None = None) -> None:
        """Load the weights."""
        self.backend.load(progress, cancel)

    def embed(
        self, pictures: Sequence[Prepared], cancel: Event | None = None, turn: Turn = nullcontext
    ) -> list[Rows]:
        """The rows of each picture, (rows, width). Any thread may call; each compute runs inside `with turn()`."""
        for picture in pictures:
            self.family.check_picture(picture)
        found: dict[int, Rows] = {}
        with self._lock:
            for group in self._groups(pictures):
                rows = self._encoded([pictures[n] for n in group], cancel, turn)
                found.update(zip(group, np.split(rows, len(group)), strict=True))
        return [found[n] for n in range(len(pictures))]

    def memory(self) -> BackendMemory:
        """The memory of the weights, and of the largest picture's graph."""
        return self.backend.memory()

    def close(self) -> None:
        """Free everything, after a running compute. Closing again does nothing."""
        with self._lock:
            while self._passes:
                self._drop_oldest()
            self.backend.close()

    def _reserve(self) -> None:
        """Allocate the memory of the largest picture: smaller ones stay within it."""
        picture = self.family.largest()
        self._most = self.family.patches(picture)
        largest = self._pass([picture])
        largest.reserve()
        ledger = self.backend.ledger
        rows = 4 * picture.tokens * self.family.width
        host = KEPT * largest.nodes * NODE + picture.pixels.nbytes + rows
        ledger.take(Entry(ledger.devices[0][0], "host"), host, lambda: None)
        self._reserved = self.backend.memory().total()

    def _groups(self, pictures: Sequence[Prepared]) -> Iterator[list[int]]:
        """Numbers of pictures that are encoded together."""
        by_key: dict[Hashable, list[int]] = {}
        for n, picture in enumerate(pictures):
            by_key.setdefault(self.family.key(picture), []).append(n)
        for numbers in by_key.values():
            most = max(1, self._most // self.family.patches(pictures[numbers[0]]))
            yield from (numbers[first : first + most] for first in range(0, len(numbers), most))

    def _encoded(self, pictures: Sequence[Prepared], cancel: Event | None, turn: Turn) -> Rows:
        """The rows of pictures of one shape; if memory is short, drop other passes: the largest fits alone."""
        while True:
            try:
                with turn():
                    traced = self._pass(pictures)
                for chunk in range(traced.chunks):
                    with turn():
                        traced.compute(chunk, cancel)
                self._keep_within()
                return traced.rows()
            except MemoryError as error:
                if len(self._passes) < 2:
                    self.backend.refuse_memory(error)
                self._drop_oldest()

    def _pass(self, pictures: Sequence[Prepared]) -> Pass:
        key = self.family.key(pictures[0]), len(pictures)
        traced = self._passes.get(key)
        if traced is not None:
            self._passes.move_to_end(key)
            traced.fill(pictures)
            return traced
        while len(self._passes) >= KEPT:
            self._drop_oldest()
        traced = self._passes[key] = Pass(self.backend, self.network, pictures)
        return traced

    def _keep_within(self) -> None:
        while len(self._passes) > 1 and self.backend.memory().total() > self._reserved:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._passes.popitem(last=False)[1].close()
