"""Cancelling a call after some of its looks at the cancellation."""

from __future__ import annotations

from collections.abc import Callable

from backbay import CancelledError


class AfterLooks:
    """A cancellation that becomes set after so many looks."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def cancelled(act: Callable[[], object]) -> bool:
    """Whether a call ends with CancelledError."""
    try:
        act()
    except CancelledError:
        return True
    return False
