"""Leaving a forked child: ONNX Runtime's destructors would wait for threads that only the parent has."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import final

from backbay.internals import close_after_fork


@final
class ChildExit:
    """Lets a forked child exit without the C++ destructors of the libraries that it inherited."""

    def after_fork(self, reason: str) -> None:
        libc = ctypes.CDLL(None)
        if hasattr(
            libc, "on_exit"
        ):  # of glibc; its handlers get the exit status, and the last one runs first
            libc.on_exit(libc._exit, None)
            libc.on_exit(libc.fcloseall, None)


@cache
def skip_destructors_after_fork() -> ChildExit:
    """Prepare every later fork of this process; the cache keeps the object alive."""
    child_exit = ChildExit()
    close_after_fork(child_exit)
    return child_exit
