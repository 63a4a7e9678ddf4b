"""The C library's allocator: when it hands freed memory back to the system."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, final

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # as M_MMAP_THRESHOLD and so on in <malloc.h> of the GNU C library
LARGE, KEPT = 1 << 16, 1 << 22  # bytes


@cache
def _libc() -> Any:
    import ctypes  # takes longer to import than most of core

    return ctypes.CDLL(None) if os.name == "posix" else None


def return_freed_memory() -> None:
    """Hand freed memory back to the system, which then need not take it from others."""
    if hasattr(_libc(), "malloc_trim"):  # only the GNU C library has it
        _libc().malloc_trim(0)


def return_large_blocks() -> None:
    """Let the C library hand freed large blocks back at once, in all of the process.

    By default it raises this limit to 32 MiB, and keeps blocks that a later, aligned allocation seldom fits.
    """
    _LIMIT.least = LARGE
    _LIMIT.set(LARGE)


def keep_large_blocks(below: int) -> None:
    """Let the C library keep freed blocks of up to `below` bytes in all of the process, until `return_large_blocks`."""
    _LIMIT.least = below
    _LIMIT.set(below)


def keep_blocks(*, keeps: bool) -> None:
    """Let the C library keep freed blocks of up to 4 MiB in all of the process, or no large ones.

    After `keep_large_blocks` it keeps at least those. The system clears each page of a block that was handed back.
    Kept blocks may be twice as much as is in use.
    """
    _LIMIT.set(KEPT if keeps else LARGE)


@final
class _Limit:
    """The size from which on the C library hands freed blocks back at once."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.least = LARGE

    def set(self, nbytes: int) -> None:
        nbytes = max(nbytes, self.least)
        if nbytes == self.nbytes or not hasattr(_libc(), "mallopt"):
            return
        lower = nbytes < self.nbytes
        _libc().mallopt(MMAP_THRESHOLD, nbytes)
        _libc().mallopt(TRIM_THRESHOLD, 2 * nbytes)  # of free memory at the heap's end
        self.nbytes = nbytes
        if lower:
            return_freed_memory()


_LIMIT = _Limit()
