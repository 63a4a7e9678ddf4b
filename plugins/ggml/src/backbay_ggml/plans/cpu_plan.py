"""Plans that run on the CPU alone, and the compute memory that they share."""

from __future__ import annotations

import math
import platform
import time
from itertools import pairwise
from typing import final

import numpy as np

from backbay import Graph, NoMemoryError
from backbay.internals import Bytes, Ledger, Timings, cached_property
from backbay.plugin import GRAPH, Cancel, check_cancel

from ..library.abi import NULL, Ptr, c_string, ffi, tensor_address
from ..library.library import Library
from .callbacks import ABORTED, OpClock, OpOrigin
from .graph_plan import ComputeMemory, GgmlPlan, GgmlPlanResources, check_status
from .repeated_rows import ids_of_several_rows, may_repeat
from .thread_choice import ThreadCountChooser

SPLIT = 512  # cells of a history that ggml divides between threads, if there is one row of queries
SAME_ON_THREADS = platform.machine() in ("x86_64", "AMD64")
"""Whether results are: ARM's kernels of two rows depend on the division of rows."""
SPARE = 8  # a part of the memory that a graph needs


@final
class PlanArena(ComputeMemory["CpuPlan"]):
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

    def make_room(self, plan: CpuPlan) -> None:
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

    def _total(self) -> int:
        return self._booked + self._scratch_size

    def _free(self) -> None:
        self._free_buffer()
        self._give_back()
        self._ledger.give_back(GRAPH, self._scratch_size) if self._scratch_size else None
        self._memory, self._scratch_size = np.zeros(0, np.uint8), 0
        self.scratch = NULL

    def _measure(self, graph: Ptr) -> int:
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
            try:
                self._take(need + need // SPARE)
            except NoMemoryError:
                self._take(need)
        if self._ledger.holds:
            allocator = self._lib.ggml_gallocr_new(self._buffer_type)
            try:
                self._reserve_places(allocator, graph)
            except MemoryError:
                self._lib.ggml_gallocr_free(allocator)
                raise
            self._allocator = allocator
        self._size = need

    def _take(self, nbytes: int) -> None:
        self._ledger.take(GRAPH, nbytes, lambda: None)
        self._booked = nbytes

    def _give_back(self) -> None:
        self._ledger.give_back(GRAPH, self._booked) if self._booked else None
        self._booked = 0

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


@final
class CpuPlan(GgmlPlan):
    """A graph whose outputs and constants have memory of their own, and whose other tensors lie in the arena."""

    def __init__(self, services: GgmlPlanResources, graph: Graph, arena: PlanArena) -> None:
        super().__init__(services, graph)
        self._arena = arena

    def _build(self) -> None:
        self._link(self._builder.order)
        self._keep([*self._outputs(), *(tensor for tensor, _ in self._builder.constants)])
        threads, stop = self._services.threads, self._services.stop
        self._cplan = ffi.new("ggml_cplan *", self._lib.ggml_graph_plan(self.graph, threads, NULL))
        self._choice = self._choose_threads()
        self._ids = ids_of_several_rows(self._nodes) if threads > 1 else []
        self._cplan.abort_callback, self._cplan.abort_callback_data = stop.callback, stop.data
        self.scratch_size = int(self._cplan.work_size)
        self._joined = True  # before it does: Ctrl-C may come between
        self.nbytes = self._own_size + self._arena.join(self)
        self._generation = self._arena.generation

    def _leave(self) -> None:
        self._arena.leave(self)

    def _compute(self, cancel: Cancel | None, clock: OpClock | None = None) -> None:
        if self._generation != self._arena.generation:  # a larger plan replaced the arena's memory
            self._unplace()
            self._arena.make_room(self)
            self._generation = self._arena.generation
        self._cplan.work_data = self._arena.scratch
        choice = self._choice
        if any(map(may_repeat, self._ids)):  # a single thread leaves the last of several rows for one place
            choice, self._cplan.n_threads = None, 1
        else:
            self._cplan.n_threads = self._services.threads if choice is None else choice.next()
        begun, worked = time.perf_counter(), time.thread_time()
        status = self._status(cancel) if clock is None else self._timed_status(clock)
        if status != 0:
            check_cancel(cancel if status == ABORTED else None)
            check_status(status)
        if choice is not None:
            choice.learn(time.perf_counter() - begun, time.thread_time() - worked)

    def _status(self, cancel: Cancel | None) -> int:
        if cancel is None:
            return int(self._lib.ggml_graph_compute(self.graph, self._cplan))
        with self._services.stop.watching(cancel):
            return int(self._lib.ggml_graph_compute(self.graph, self._cplan))

    def _timed_status(self, clock: OpClock) -> int:
        """A clock takes the place of the stop flag, which ggml's first thread reads after each op."""
        usual = self._cplan.abort_callback
        self._cplan.abort_callback = clock.after_op
        clock.start()
        try:
            return int(self._lib.ggml_graph_compute(self.graph, self._cplan))
        finally:
            self._cplan.abort_callback = usual
            clock.check()

    def _timings(self, clock: OpClock) -> Timings:
        """Between the ends of two ops, the first thread waits for the others, then computes."""
        ops = self._timed_ops
        return lambda: clock.in_order(ops)

    @cached_property
    def _timed_ops(self) -> list[OpOrigin]:
        owners, device = self._builder.owners(), self._services.cpu.id
        ops = [tensor for tensor in self._ops if tensor.op not in self._library.view_ops]
        return [
            OpOrigin(owners.get(tensor_address(tensor)), device, self._merges(tensor, after))
            for tensor, after in pairwise((*ops, ops[-1]))
        ]

    def _merges(self, tensor: Ptr, after: Ptr) -> bool:
        """Whether ggml may compute an op together with the one after it: a norm with the product with its weights."""
        names = [c_string(self._lib.ggml_op_name(each.op)) for each in (tensor, after)]
        return names == ["RMS_NORM", "MUL"] and tensor in (after.src[0], after.src[1])

    def _choose_threads(self) -> ThreadCountChooser | None:
        """The choice for graphs of about as many ops and results; None if results depend on the number of threads.

        Views do not count, nor what is written in place: a cache is as large in steps of one token as in steps of 16.
        """
        order = self._builder.order
        if self._services.threads == 1 or not SAME_ON_THREADS or any(map(self._splits_history, order)):
            return None
        elements = sum(math.prod(tensor.ne) for tensor in order if tensor.view_src == NULL)
        return self._services.thread_choices[len(order), elements.bit_length()]

    def _splits_history(self, tensor: Ptr) -> bool:
        """Whether ggml gives each thread a part of the history, and adds up their results."""
        is_attention = c_string(self._lib.ggml_op_name(tensor.op)) == "FLASH_ATTN_EXT"
        return is_attention and tensor.src[0].ne[1] == 1 and tensor.src[1].ne[1] >= SPLIT

    def _output(self, tensor: Ptr, nbytes: int) -> Bytes:
        return np.frombuffer(ffi.buffer(tensor.data, nbytes), np.uint8)

    def report(self) -> list[str]:
        ops = [tensor for tensor in self._builder.order if tensor.op not in self._library.view_ops]
        return [f"{self._services.cpu.id} {self._library.describe(tensor)}" for tensor in ops]
