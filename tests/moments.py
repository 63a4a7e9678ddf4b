"""Ctrl-C at every moment: after each call that a thread makes, and at the beginning of each function.

These are the places at which Python handles signals. A profiler sees them all, so it can raise KeyboardInterrupt at any.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from types import FrameType

from patience import PATIENCE


class Interrupt:
    """A profiler that interrupts its thread at one moment, counted from 1."""

    def __init__(self, moment: int) -> None:
        self.left = moment
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return"):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                self.where = "".join(traceback.format_stack(frame, 12))
                raise KeyboardInterrupt


def interrupt_everywhere(work: Callable[[], object], *, stride: int = 1) -> int:
    """Interrupt `work` at each `stride`-th moment, and repeat it each time, undisturbed and in another thread.

    Returns how often it was interrupted. AssertionError if one of both does not end, or if the second fails.
    """
    moment = 1
    while True:
        interrupt = Interrupt(moment)
        _in_a_thread(partial(_interrupted, work, interrupt), "does not end, interrupted at", interrupt)
        if not interrupt.where:
            return moment // stride
        _in_a_thread(work, "does not work any more after an interrupt at", interrupt)
        moment += stride


def _interrupted(work: Callable[[], object], interrupt: Interrupt) -> None:
    try:
        sys.setprofile(interrupt)
        work()
    except KeyboardInterrupt:
        pass
    except RuntimeError as error:
        if "release un" not in str(error):  # interrupted in `Condition.wait`, Python releases a lock twice
            raise
    finally:
        sys.setprofile(None)


def _in_a_thread(step: Callable[[], object], fault: str, interrupt: Interrupt) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            step()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive() or errors:
        raise AssertionError(f"{fault}\n{interrupt.where}") from next(iter(errors), None)
