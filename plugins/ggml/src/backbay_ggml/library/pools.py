"""Pools: the memory in which ggml keeps the descriptions of tensors and graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .abi import NULL, Ptr, ffi

ROOM = 1 << 16  # bytes that ggml_init allocates beside the pool, at most


def new_pool(lib: Any, nbytes: int) -> Ptr:
    """A pool of a fixed size, to be freed by `ggml_free`; MemoryError if the system has no room for it."""
    np.empty(nbytes + ROOM, np.uint8)  # without room, ggml_init would end the process
    made = lib.ggml_init(ffi.new("ggml_init_params *", (nbytes, NULL, True))[0])
    if made == NULL:
        raise MemoryError("no memory for the description of a graph")
    return made


@contextmanager
def temporary_pool(lib: Any, tensors: int = 16) -> Iterator[Ptr]:
    """A pool for a few tensors, freed at the end."""
    made = new_pool(lib, tensors * lib.ggml_tensor_overhead())
    try:
        yield made
    finally:
        lib.ggml_free(made)
