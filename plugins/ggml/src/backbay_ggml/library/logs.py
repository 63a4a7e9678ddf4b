"""ggml's messages, passed on to Python's logging."""

from __future__ import annotations

import atexit
import logging
from typing import Any

from .abi import NULL, ffi

logger = logging.getLogger("backbay.ggml")

# ggml's information level (2) is as detailed as Python's debug.
LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
CONTINUED = 5

_pending: list[tuple[int, str]] = []  # the begin of a line that ggml prints in pieces
_kept: list[Any] = []  # callbacks that C holds pointers to


def attach(lib: Any) -> None:
    """Let ggml log through Python until the interpreter ends."""
    callback = ffi.callback("void(int, const char *, void *)", _receive)
    _kept.append(callback)
    lib.ggml_log_set(callback, NULL)
    atexit.register(lib.ggml_log_set, NULL, NULL)


def _receive(level: int, message: Any, _: Any) -> None:
    piece = ffi.string(message).decode(errors="replace")
    if level == CONTINUED and _pending:
        first, begun = _pending.pop()
        level, piece = first, begun + piece
    if piece.endswith("\n"):
        logger.log(LEVELS.get(level, logging.DEBUG), "%s", piece.rstrip())
    else:
        _pending[:] = [(level, piece)]
