"""State of the process that its other code relies on: a backend leaves it as it was."""

from __future__ import annotations

import ctypes
import gc
import locale
import logging
import os
import random
import signal
import stat
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..fault import Fault

MOST_SHOWN = 120
CATEGORIES = ("LC_NUMERIC", "LC_TIME", "LC_COLLATE")
"""The parts of the locale that a test can set without harm."""


@dataclass(frozen=True)
class ProcessSetting:
    """A part of the process's state: how it is read, and how it is set again, unless a library may set it when it is loaded."""

    read: Callable[[], Any]
    restore: Callable[[Any], object] | None = None


def numpy_random() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 other code of the process may use this state
    return kind, np.asarray(keys).tobytes(), *rest


def set_numpy_random(state: tuple[Any, ...]) -> None:
    kind, keys, *rest = state
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))  # noqa: NPY002 as above


def umask() -> int:
    found = os.umask(0o077)  # it can only be read by setting it
    os.umask(found)
    return found


def handlers() -> dict[str, Any]:
    return {number.name: signal.getsignal(number) for number in signal.Signals}


def set_handlers(wanted: dict[str, Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for name, handler in wanted.items():
            number = signal.Signals[name]
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)


def keeps_subnormals() -> tuple[bool, bool]:
    """Whether sums of this thread keep numbers below the normal range of f64 and of f32."""
    small = float("5e-324")
    return small + 0.0 != 0, bool((np.full(8, 1e-40, np.float32) + np.float32(0) != 0).all())


def set_streams(streams: list[Any]) -> None:
    sys.stdin, sys.stdout, sys.stderr = streams


@cache
def c_library() -> Any:
    return ctypes.CDLL(None) if os.name == "posix" else None


def flush_c() -> None:
    """Let the C library write what it has kept of prints."""
    if c_library() is not None:
        c_library().fflush(None)


def written_bytes() -> int:
    """The bytes of standard output, if it is a file, as in a worker process."""
    sys.stdout.flush()
    flush_c()
    status = os.fstat(1)
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


STATE: dict[str, ProcessSetting] = {
    "np.geterr()": ProcessSetting(np.geterr, lambda kept: np.seterr(**kept)),
    "np.get_printoptions()": ProcessSetting(np.get_printoptions, lambda kept: np.set_printoptions(**kept)),
    "the state of np.random": ProcessSetting(numpy_random, set_numpy_random),
    "the state of random": ProcessSetting(random.getstate, random.setstate),
    "os.environ": ProcessSetting(lambda: dict(os.environ)),
    "gc.isenabled()": ProcessSetting(gc.isenabled, lambda kept: gc.enable() if kept else gc.disable()),
    "gc.get_threshold()": ProcessSetting(gc.get_threshold, lambda kept: gc.set_threshold(*kept)),
    "the signal handlers": ProcessSetting(handlers, set_handlers),
    "the current directory": ProcessSetting(os.getcwd, os.chdir),
    "the locale": ProcessSetting(
        lambda: [locale.setlocale(getattr(locale, name)) for name in ("LC_CTYPE", *CATEGORIES)]
    ),
    "the umask": ProcessSetting(umask, os.umask),
    "sys.stdin, sys.stdout and sys.stderr": ProcessSetting(
        lambda: [sys.stdin, sys.stdout, sys.stderr], set_streams
    ),
    "sys.path": ProcessSetting(lambda: list(sys.path)),
    "sys.getrecursionlimit()": ProcessSetting(sys.getrecursionlimit, sys.setrecursionlimit),
    "sys.excepthook": ProcessSetting(lambda: sys.excepthook, lambda kept: setattr(sys, "excepthook", kept)),
    "warnings.filters": ProcessSetting(lambda: list(warnings.filters)),
    "the level and handlers of the root logger": ProcessSetting(
        lambda: [logging.root.level, *logging.root.handlers]
    ),
    "subnormal numbers": ProcessSetting(keeps_subnormals),
}
"""What code of the same process relies on."""
if hasattr(signal, "pthread_sigmask"):
    STATE["the blocked signals"] = ProcessSetting(
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
        lambda kept: signal.pthread_sigmask(signal.SIG_SETMASK, kept),
    )

WATCHED = {name: part for name, part in STATE.items() if part.restore is not None}
"""What no call may change, not even the first one, in which a library may be loaded."""


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Raise Fault if a call that succeeds has changed the process, or printed; set again what it has changed."""
    before, written = {name: part.read() for name, part in WATCHED.items()}, written_bytes()
    try:
        yield
    except BaseException:
        restore(before)
        raise
    for name, (was, now) in restore(before).items():
        raise Fault("process", f"{name} changed: {describe_change(was, now)}")
    if (length := written_bytes()) != written:
        with suppress(OSError):  # a file that can only be written
            raise Fault("process", f"standard output has {short(os.pread(1, length - written, written))}")
        raise Fault("process", f"standard output has {length - written} more bytes")


def restore(before: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Set changed parts again; returns the values of each, as it was and as it was changed."""
    changed = {name: (was, now) for name, was in before.items() if (now := WATCHED[name].read()) != was}
    for name, (was, _) in changed.items():
        set_again = WATCHED[name].restore
        assert set_again is not None
        set_again(was)
    return changed


def describe_change(before: object, now: object) -> str:
    """Both values, or the parts of dictionaries that differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return ", ".join(f"{name} was {before.get(name)!r}, and is {now.get(name)!r}" for name in names)
    return f"it was {short(before)}, and is {short(now)}"


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
