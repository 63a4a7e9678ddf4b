"""What ONNX Runtime takes for values between nodes while a graph runs, and gives back when it has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from backbay.plugin import Entry

if TYPE_CHECKING:
    from ..backend import OnnxBackend

PAGE = 4096


class Workspace:
    """Books the largest of all plans' needs: graphs run one at a time. What is booked was to be had at that time."""

    def __init__(self, backend: OnnxBackend, entry: Entry) -> None:
        self._backend, self._entry = backend, entry
        self._needs: dict[int, int] = {}
        self.booked = 0

    def take(self, owner: object, nbytes: int) -> None:
        """Book what an owner's runs need; NoMemoryError where a limit refuses it, or the system does."""
        more = max(nbytes - self.booked, 0)
        holds = self._backend.params.alloc_memory and more
        self._backend.ledger.take(self._entry, more, lambda: _try(nbytes) if holds else None)
        self.booked += more
        self._needs[id(owner)] = nbytes

    def give_back(self, owner: object) -> None:
        self._needs.pop(id(owner), None)
        left = max(self._needs.values(), default=0)
        self._backend.ledger.give_back(self._entry, self.booked - left)
        self.booked = left


def _try(nbytes: int) -> None:
    """Take memory, and use every page of it: a promise alone may be broken later."""
    np.empty(nbytes, np.uint8)[::PAGE] = 0
