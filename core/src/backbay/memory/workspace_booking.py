"""The booking of a workspace: the working memory of plans, the largest of which counts."""

from __future__ import annotations

import numpy as np

from .ledger import Entry, Ledger

PAGE = 4096


class Workspace:
    """Books the largest working memory of all plans, as graphs run one at a time.

    If the ledger holds memory, what is booked is taken and given back at once: a plan that does not fit fails then.
    """

    def __init__(self, ledger: Ledger, entry: Entry) -> None:
        self._ledger, self._entry = ledger, entry
        self._wanted: dict[int, int] = {}  # bytes by plan
        self.booked = 0

    def take(self, owner: object, nbytes: int) -> None:
        """Book the working memory of a plan; NoMemoryError if a limit or the system refuses it."""
        more = max(nbytes - self.booked, 0)
        self._ledger.take(self._entry, more, lambda: _try(more) if self._ledger.holds and more else None)
        self.booked += more
        self._wanted[id(owner)] = nbytes

    def give_back(self, owner: object) -> None:
        """A plan needs its working memory no longer."""
        self._wanted.pop(id(owner), None)
        left = max(self._wanted.values(), default=0)
        if self.booked > left:  # else the ledger may not know the entry: its first booking was refused
            self._ledger.give_back(self._entry, self.booked - left)
            self.booked = left


def _try(nbytes: int) -> None:
    """Take memory, and write to every page: the system may break a mere promise of memory later."""
    np.empty(nbytes, np.uint8)[::PAGE] = 0
