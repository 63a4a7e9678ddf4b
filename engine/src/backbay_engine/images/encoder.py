"""The encoder: a model of its own, whose contexts are kept and computed again for pictures of the same shape."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import RLock
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

import backbay
from backbay import Backend, BackendMemory, BackendParams
from backbay.plugin import Cancel, Progress

from ..steps.kept_contexts import KeptContexts
from .contract import VisionFamily
from .passes import Pass
from .prepared import Prepared

Rows: TypeAlias = NDArray[np.float32]
Turn: TypeAlias = Callable[[], AbstractContextManager[Any]]
KEPT = 8  # passes


@final
class Encoder:
    """An encoder on a backend of its own. It is reserved when it is made, and encodes once it is loaded.

    Pictures of one shape are encoded together, up to as many positions as the largest picture has.
    """

    def __init__(
        self,
        family: VisionFamily,
        backend: str | type[Backend] | None = None,
        params: BackendParams | None = None,
    ) -> None:
        self.family = family
        self._lock = RLock()  # the garbage collector may call close in the thread that encodes
        self.backend = backbay.open(family.file, backend, params)
        self._passes: KeptContexts[Pass] = KeptContexts(self.backend, KEPT)
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
        self, pictures: Sequence[Prepared], cancel: Cancel | None = None, turn: Turn = nullcontext
    ) -> list[Rows]:
        """The rows of each picture, (rows, width). Any thread may call; each compute runs inside `with turn()`."""
        for picture in pictures:
            self.family.check_picture(picture)
        found: dict[int, Rows] = {}
        with self._lock:
            for group in self._groups(pictures):
                rows = self._passes.run(partial(self._encoded, [pictures[n] for n in group], cancel, turn))
                found.update(zip(group, np.split(rows, len(group)), strict=True))
        return [found[n] for n in range(len(pictures))]

    def memory(self) -> BackendMemory:
        """The memory of the weights, and of the largest picture's graph."""
        return self.backend.memory()

    def close(self) -> None:
        """Free everything, after a running compute. Closing again does nothing."""
        with self._lock:
            self._passes.close()
            self.backend.close()

    def _reserve(self) -> None:
        """Allocate the memory of the largest picture: all others stay within it, and within that of the smallest."""
        self._pass([self.family.smallest()]).reserve()
        picture = self.family.largest()
        self._most = self.family.patches(picture)
        largest = self._pass([picture])
        largest.reserve()
        rows = 4 * picture.tokens * self.family.width
        self._passes.reserve(largest.nodes, picture.pixels.nbytes + rows)

    def _groups(self, pictures: Sequence[Prepared]) -> Iterator[list[int]]:
        """Numbers of pictures that are encoded together."""
        by_key: dict[Hashable, list[int]] = {}
        for n, picture in enumerate(pictures):
            by_key.setdefault(self.family.key(picture), []).append(n)
        for numbers in by_key.values():
            most = max(1, self._most // self.family.patches(pictures[numbers[0]]))
            yield from (numbers[first : first + most] for first in range(0, len(numbers), most))

    def _encoded(self, pictures: Sequence[Prepared], cancel: Cancel | None, turn: Turn) -> Rows:
        """The rows of pictures of one shape."""
        with turn():
            traced = self._pass(pictures)
        for chunk in range(traced.chunks):
            with turn():
                traced.compute(chunk, cancel)
        self._passes.keep_within()
        return traced.rows()

    def _pass(self, pictures: Sequence[Prepared]) -> Pass:
        key = self.family.key(pictures[0]), len(pictures)
        traced = self._passes.get(key)
        if traced is None:
            return self._passes.add(key, partial(Pass, self.backend, self.network, pictures))
        traced.fill(pictures)
        return traced
