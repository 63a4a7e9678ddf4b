"""The C library's allocator: when it hands freed memory back to the system."""

from __future__ import annotations

import ctypes

LIBC = ctypes.CDLL(None)
MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD in <malloc.h> of the GNU C library
LARGE = 1 << 20


def return_freed_memory() -> None:
    """Hand freed memory back to the system: after loading it is as much as a model."""
    if hasattr(LIBC, "malloc_trim"):  # only the GNU C library has it
        LIBC.malloc_trim(0)


def return_large_blocks() -> None:
    """Let the C library hand freed large blocks back at once, in all of the process.

    By default it raises this limit to 32 MiB. It seldom uses freed blocks again, as ONNX Runtime asks for aligned
    blocks: a first run then takes several times its working memory.
    """
    if hasattr(LIBC, "mallopt"):
        LIBC.mallopt(MMAP_THRESHOLD, LARGE)
