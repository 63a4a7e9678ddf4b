"""The C library's allocator, for the suite's own arrays and for measures of memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As <malloc.h> of the GNU C library has them."""


def keep_freed(below: int) -> None:
    """Keep freed blocks of fewer bytes for the next ones; larger ones go back to the system at once."""
    with suppress(AttributeError):  # other C libraries have no such setting
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, below)
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, 2 * below)


def give_back_freed() -> None:
    """Give all kept blocks back to the system."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
