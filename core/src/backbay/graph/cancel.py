"""Cancellation of a load or a compute."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..errors import CancelledError, OptionError


class Cancel(Protocol):
    """A flag that asks a load or a compute to stop, such as a threading.Event."""

    def is_set(self) -> bool: ...


@contextmanager
def stop_when_cancelled(
    cancel: Cancel | None, stop: Callable[[], object], poll: float = 0.002
) -> Iterator[None]:
    """While a library runs, check `cancel` every `poll` seconds in another thread; if it is set, call `stop` once."""
    if cancel is None:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        while not done.wait(poll):
            if cancel.is_set():
                stop()
                return

    watcher = threading.Thread(target=watch, name="backbay-cancel", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def require_cancel(cancel: object) -> None:
    """Raise unless an argument `cancel` is None or a flag."""
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise OptionError(f"cancel must have a method is_set, such as a threading.Event has, got {cancel!r}")


def check_cancel(cancel: Cancel | None) -> None:
    if cancel is not None and cancel.is_set():
        raise CancelledError
