"""Turns: an encoder's computes and the steps of text take turns, so that a large picture does not hold up answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, RLock
from time import monotonic
from typing import final

from backbay import BackendMemory

CPU = "CPU"


def share_processors(text: BackendMemory, encoder: BackendMemory) -> bool:
    """Whether steps of text and an encoding may take the same processors, by the devices that hold their layers.

    Two backends may name one GPU in two ways, such as CUDA:0 and Vulkan:0; numbers differ for sure only within a kind.
    """
    return any(
        a == b or (CPU not in (a[0], b[0]) and a[0] != b[0]) for a in _busy(text) for b in _busy(encoder)
    )


def _busy(memory: BackendMemory) -> set[tuple[str, str]]:
    """Kinds and numbers of the devices that hold layers."""
    ids = [device.id for device in memory.devices if any(layer.size for layer in device.weights)]
    return {(kind, number) for kind, _, number in (id.partition(":") for id in ids)}


@final
class ProcessorLock:
    """Keeps steps of text and parts of an encoding apart, which would take the same processors from each other.

    After a part that took t seconds, steps of text have t seconds for themselves, unless there are none. So half of
    the time is the text's, and a token waits for one part at most.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # Ctrl-C may leave a Condition locked that is entered itself
        self._changed = Condition(self._lock)
        self._running = False  # a step or a part
        self._waiting = 0  # steps that wait for a part
        self._answering = False  # there is text to compute
        self._texts_until = 0.0

    def answering(self, now: bool) -> None:
        """Whether there is text to compute; without any, parts follow each other at once."""
        if self._answering != now:
            with self._lock:
                self._answering = now
                self._changed.notify_all()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step of text, after the part that is running."""
        with self._lock:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._running)
            self._waiting -= 1
            self._running = True
        try:
            yield
        finally:
            self._leave(0.0)

    @contextmanager
    def part(self) -> Iterator[None]:
        """Run a part of an encoding, when the text has had its time."""
        with self._lock:
            while (left := self._left()) or self._running or self._waiting:
                self._changed.wait(left or None)
            self._running = True
        begun = monotonic()
        try:
            yield
        finally:
            self._leave(monotonic() - begun)

    def after_fork(self) -> None:
        """In a forked child, whose other threads are lost."""
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._running, self._waiting, self._answering = False, 0, False

    def _left(self) -> float:
        """The seconds that the text has for itself."""
        return max(0.0, self._texts_until - monotonic()) if self._answering else 0.0

    def _leave(self, owed: float) -> None:
        with self._lock:
            self._running = False
            if owed:
                self._texts_until = monotonic() + owed
            self._changed.notify_all()
