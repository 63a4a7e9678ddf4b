"""Cancellation of a load or a compute."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..errors import CancelledError, OptionError
from ..types.flag import Flag


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
    done, deciding = Flag(), threading.Lock()

    def watch() -> None:
        while not done.wait(poll):
            if cancel.is_set():
                with deciding:
                    if not done.is_set():
                        stop()
                return

    # Thread.start waits for ever for a thread that finds no memory to begin (until Python 3.13).
    _thread.start_new_thread(watch, ())
    try:
        yield
    finally:
        with deciding:
            done.set()


def require_cancel(cancel: object) -> None:
    """Raise unless an argument `cancel` is None or a flag."""
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise OptionError(f"cancel must have a method is_set, such as a threading.Event has, got {cancel!r}")


def check_cancel(cancel: Cancel | None) -> None:
    if cancel is not None and cancel.is_set():
        raise CancelledError
