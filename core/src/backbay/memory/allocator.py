"""The C library's allocator: when it hands freed memory back to the system."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD in <malloc.h> of the GNU C library
LARGE = 1 << 16


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
    if hasattr(_libc(), "mallopt"):
        _libc().mallopt(MMAP_THRESHOLD, LARGE)
