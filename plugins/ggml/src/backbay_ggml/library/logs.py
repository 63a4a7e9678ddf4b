"""ggml's messages, passed on to Python's logging."""

from __future__ import annotations

import _thread
import atexit
import logging
import threading
import traceback
from types import TracebackType
from typing import Any

from .abi import NULL, ffi

logger = logging.getLogger("backbay.ggml")

# ggml's information level (2) is as detailed as Python's debug.
LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
CONTINUED = 5
AGAIN = 0.05  # seconds until a Ctrl-C comes again

_pending: list[tuple[int, str]] = []  # the begin of a line that ggml prints in pieces
_kept: list[Any] = []  # callbacks that C holds pointers to


def attach(lib: Any) -> None:
    """Let ggml log through Python until the interpreter ends."""
    callback = ffi.callback("void(int, const char *, void *)", _receive, onerror=_postpone)
    _kept.append(callback)
    lib.ggml_log_set(callback, NULL)
    atexit.register(lib.ggml_log_set, NULL, NULL)


def _postpone(kind: type[BaseException], error: BaseException, trace: TracebackType) -> None:
    """Let Ctrl-C come again when ggml has returned: an error cannot pass through C."""
    if isinstance(error, KeyboardInterrupt):
        timer = threading.Timer(AGAIN, _thread.interrupt_main)
        timer.daemon = True
        timer.start()
    else:
        traceback.print_exception(error)


def _receive(level: int, message: Any, _: Any) -> None:
    piece = ffi.string(message).decode(errors="replace")
    if level == CONTINUED and _pending:
        first, begun = _pending.pop()
        level, piece = first, begun + piece
    if piece.endswith("\n"):
        logger.log(LEVELS.get(level, logging.DEBUG), "%s", piece.rstrip())
    else:
        _pending[:] = [(level, piece)]
