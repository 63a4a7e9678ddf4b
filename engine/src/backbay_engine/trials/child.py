"""The child process of a trial: it loads a model on one backend, and tells how fast that is."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NoReturn

from backbay import BackbayError, BackendUnavailableError
from backbay.internals import reporter

from ..local.port import LocalPort
from ..port.options import LoadOptions, Path
from .measuring import Speed, measure

PASSING = (MemoryError, OSError, BackendUnavailableError)  # errors that another trial may not meet


@dataclass(frozen=True)
class Task:
    """What the child measures."""

    path: Path
    backend: str
    options: LoadOptions


def main() -> NoReturn:
    """Measure the task that standard input holds, tell the result, and end at once."""
    tell = reporter()
    try:
        tell(speed=asdict(measured(pickle.load(sys.stdin.buffer), lambda: tell(loaded=True))))  # noqa: S301
    except Exception as error:  # noqa: BLE001  a plugin may raise anything
        tell(why_not=_described(error), lasts=not isinstance(error, PASSING))
    os._exit(0)  # without waiting for threads that a library left behind


def measured(task: Task, loaded: Callable[[], None]) -> Speed:
    """The speed of a task; `loaded` is called once the model can answer."""
    port = LocalPort(task.path, task.backend, task.options)
    try:
        port.load()
        loaded()
        return measure(port, task.options.parallel)
    finally:
        port.close()


def _described(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, BackbayError) and text else f"{type(error).__name__}: {text}"
