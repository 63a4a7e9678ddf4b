"""Compute memory that all plans of a backend share, because one of them runs at a time."""

from __future__ import annotations

from typing import final

import numpy as np

from backbay.plugin import Entry, Ledger

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library


@final
class Arena:
    """One buffer for the intermediate results of whichever plan runs, as large as the largest plan needs.

    A plan that needs more makes it anew, elsewhere: plans of earlier generations must be placed again before they run.
    It is freed with the last plan. With `holds` False it only counts.
    """

    def __init__(self, library: Library, ledger: Ledger, entry: Entry, *, holds: bool) -> None:
        self._lib = library.lib
        self._buffer_type = library.lib.ggml_backend_cpu_buffer_type()
        self._ledger, self._entry, self._holds = ledger, entry, holds
        self._allocator: Ptr = NULL
        self._memory = np.zeros(0, np.uint8)  # what kernels use while they run
        self.scratch: Ptr = NULL  # its address
        self._size = self._scratch_size = self._users = 0
        self.generation = 0

    def join(self, graph: Ptr, scratch: int) -> int:
        """Give the tensors of one more plan their places; returns the bytes that were allocated for it."""
        self._users += 1
        before = self._size + self._scratch_size
        try:
            self.place(graph, scratch)
        except BaseException:
            self.leave()
            raise
        return max(0, self._size + self._scratch_size - before)

    def place(self, graph: Ptr, scratch: int) -> None:
        """Give the tensors of a graph that have no place one, in memory that is large enough."""
        need = self._measure(graph)
        if need > self._size or (self._holds and self._allocator == NULL):
            self._remake(graph, need)
        if scratch > self._scratch_size:
            self._grow_scratch(scratch)
        if self._holds and not self._lib.ggml_gallocr_alloc_graph(self._allocator, graph):
            raise MemoryError("ggml could not place a graph")

    def leave(self) -> None:
        """One plan less; the last one takes the memory along."""
        self._users -= 1
        if self._users == 0:
            self._drop()
            self._ledger.give_back(self._entry, self._scratch_size)
            self._memory, self._scratch_size = np.zeros(0, np.uint8), 0
            self.scratch = NULL

    def _measure(self, graph: Ptr) -> int:
        """The bytes that a graph needs, found on an allocator that is thrown away."""
        allocator, sizes = self._lib.ggml_gallocr_new(self._buffer_type), ffi.new("size_t[1]")
        try:
            self._lib.ggml_gallocr_reserve_n_size(allocator, graph, NULL, NULL, sizes)
        finally:
            self._lib.ggml_gallocr_free(allocator)
        return int(sizes[0])

    def _remake(self, graph: Ptr, need: int) -> None:
        self._drop()
        self._ledger.take(self._entry, need, lambda: self._reserve(graph) if self._holds else None)
        self._size = need

    def _reserve(self, graph: Ptr) -> None:
        allocator = self._lib.ggml_gallocr_new(self._buffer_type)
        if not self._lib.ggml_gallocr_reserve(allocator, graph):
            self._lib.ggml_gallocr_free(allocator)
            raise MemoryError("ggml got no memory from the system")
        self._allocator = allocator

    def _grow_scratch(self, need: int) -> None:
        def allocate() -> None:
            self._memory = np.empty(need if self._holds else 0, np.uint8)
            self.scratch = ffi.cast("uint8_t *", self._memory.ctypes.data)

        self._ledger.take(self._entry, need - self._scratch_size, allocate)
        self._scratch_size = need

    def _drop(self) -> None:
        if self._allocator != NULL:
            self._lib.ggml_gallocr_free(self._allocator)
            self._allocator = NULL
        self._ledger.give_back(self._entry, self._size) if self._size else None
        self._size = 0
        self.generation += 1
