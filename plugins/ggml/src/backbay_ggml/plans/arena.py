"""The compute memory of plans that run on the CPU alone."""

from __future__ import annotations

from typing import Protocol, final

import numpy as np

from backbay import NoMemoryError
from backbay.internals import Ledger
from backbay.plugin import GRAPH

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library
from .shared_memory import SharedMemory

SPARE = 8  # a part of what a graph needs


class ArenaPlan(Protocol):
    """A plan that the arena gives memory."""

    graph: Ptr
    scratch_size: int  # bytes that its kernels use while they run


@final
class Arena(SharedMemory[ArenaPlan]):
    """One buffer for intermediate results, and one for the scratch memory of kernels.

    A larger buffer lies elsewhere and starts a new generation: plans of earlier ones must be placed again before they
    run. If the ledger only measures, nothing is allocated.

    ggml fits results into the gaps that others leave. So a graph of fewer tokens may need more than one of more tokens:
    6.7 % were seen. An eighth beside the need is booked for such graphs, if the limits allow it.
    """

    def __init__(self, library: Library, ledger: Ledger) -> None:
        super().__init__()
        self._lib, self._ledger = library.lib, ledger
        self._buffer_type = library.lib.ggml_backend_cpu_buffer_type()
        self._allocator: Ptr = NULL
        self._memory = np.zeros(0, np.uint8)
        self.scratch: Ptr = NULL  # the address of the scratch memory
        self._size = self._booked = self._scratch_size = 0
        self.generation = 0

    def place(self, plan: ArenaPlan) -> None:
        """Give the tensors of a plan that have no place one, in memory that is large enough."""
        need = self._measure(plan.graph)
        if need > self._size or (self._ledger.holds and self._allocator == NULL):
            self._replace(plan.graph, need)
        elif self._ledger.holds:
            # ggml takes the places of the last graph for any other with as many nodes, whatever its order.
            self._reserve_places(self._allocator, plan.graph)
        if plan.scratch_size > self._scratch_size:
            self._grow_scratch(plan.scratch_size)
        if self._ledger.holds and not self._lib.ggml_gallocr_alloc_graph(self._allocator, plan.graph):
            raise MemoryError("ggml could not place a graph")

    def _make_room(self, plan: ArenaPlan) -> None:
        self.place(plan)

    def _total(self) -> int:
        return self._booked + self._scratch_size

    def _free(self) -> None:
        self._free_buffer()
        self._give_back()
        self._ledger.give_back(GRAPH, self._scratch_size) if self._scratch_size else None
        self._memory, self._scratch_size = np.zeros(0, np.uint8), 0
        self.scratch = NULL

    def _measure(self, graph: Ptr) -> int:
        """The bytes that a graph needs, measured by a temporary allocator."""
        allocator, sizes = self._lib.ggml_gallocr_new(self._buffer_type), ffi.new("size_t[1]")
        try:
            self._lib.ggml_gallocr_reserve_n_size(allocator, graph, NULL, NULL, sizes)
        finally:
            self._lib.ggml_gallocr_free(allocator)
        return int(sizes[0])

    def _replace(self, graph: Ptr, need: int) -> None:
        self._free_buffer()
        if need > self._booked:
            self._give_back()
            self._book(need)
        if self._ledger.holds:
            self._reserve(graph)
        self._size = need

    def _book(self, need: int) -> None:
        try:
            self._take(need + need // SPARE)
        except NoMemoryError:
            self._take(need)

    def _take(self, nbytes: int) -> None:
        self._ledger.take(GRAPH, nbytes, lambda: None)
        self._booked = nbytes

    def _give_back(self) -> None:
        self._ledger.give_back(GRAPH, self._booked) if self._booked else None
        self._booked = 0

    def _reserve(self, graph: Ptr) -> None:
        allocator = self._lib.ggml_gallocr_new(self._buffer_type)
        try:
            self._reserve_places(allocator, graph)
        except MemoryError:
            self._lib.ggml_gallocr_free(allocator)
            raise
        self._allocator = allocator

    def _reserve_places(self, allocator: Ptr, graph: Ptr) -> None:
        if not self._lib.ggml_gallocr_reserve(allocator, graph):
            raise MemoryError("the system gave ggml no memory")

    def _grow_scratch(self, need: int) -> None:
        def allocate() -> None:
            self._memory = np.empty(need if self._ledger.holds else 0, np.uint8)
            self.scratch = ffi.cast("uint8_t *", self._memory.ctypes.data)

        self._ledger.take(GRAPH, need - self._scratch_size, allocate)
        self._scratch_size = need

    def _free_buffer(self) -> None:
        if self._allocator != NULL:
            self._lib.ggml_gallocr_free(self._allocator)
            self._allocator = NULL
        self._size = 0
        self.generation += 1
