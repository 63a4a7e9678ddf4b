"""A plan that runs on the CPU alone."""

from __future__ import annotations

import math
import platform
import time
from itertools import pairwise
from typing import final

import numpy as np

from backbay import Graph
from backbay.internals import Bytes, Timings, cached_property
from backbay.plugin import Cancel, check_cancel

from ..library.abi import NULL, Ptr, address, ffi
from ..library.library import text
from .arena import Arena
from .graph_plan import GraphPlan, check_status
from .op_clock import OpClock, TimedOp
from .repeated_rows import RepeatedRows
from .services import Services
from .stop_flag import ABORTED
from .thread_choice import ThreadChoice

SPLIT = 512  # cells of a history that ggml divides between threads, if there is one row of queries
SAME_ON_THREADS = platform.machine() in (
    "x86_64",
    "AMD64",
)  # ARM's kernels of two rows depend on the division of rows


@final
class CpuPlan(GraphPlan):
    """A graph whose outputs and constants have memory of their own, and whose other tensors lie in the arena."""

    def __init__(self, services: Services, graph: Graph, arena: Arena) -> None:
        super().__init__(services, graph)
        self._arena = arena

    def _build(self) -> None:
        self._link(self._builder.order)
        self._keep([*self._outputs(), *(tensor for tensor, _ in self._builder.constants)])
        threads, stop = self._services.threads, self._services.stop
        self._cplan = ffi.new("ggml_cplan *", self._lib.ggml_graph_plan(self.graph, threads, NULL))
        self._choice = self._choose_threads()
        repeated_rows = RepeatedRows(self._nodes)
        self._repeated_rows = repeated_rows if threads > 1 and repeated_rows.written else None
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
            self._arena.place(self)
            self._generation = self._arena.generation
        self._cplan.work_data = self._arena.scratch
        choice = self._choice
        if self._repeated_rows is not None and self._repeated_rows.may_come():
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
        """ggml's status of a run."""
        if cancel is None:
            return int(self._lib.ggml_graph_compute(self.graph, self._cplan))
        with self._services.stop.watching(cancel):
            return int(self._lib.ggml_graph_compute(self.graph, self._cplan))

    def _timed_status(self, clock: OpClock) -> int:
        """The same; a clock takes the place of the stop flag, which ggml's first thread reads after each op."""
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
    def _timed_ops(self) -> list[TimedOp]:
        owners, device = self._builder.owners(), self._services.cpu.id
        ops = [tensor for tensor in self._ops if tensor.op not in self._library.view_ops]
        return [
            TimedOp(owners.get(address(tensor)), device, self._merges(tensor, after))
            for tensor, after in pairwise((*ops, ops[-1]))
        ]

    def _merges(self, tensor: Ptr, after: Ptr) -> bool:
        """Whether ggml may compute an op together with the one after it: a norm with the product with its weights."""
        names = [text(self._lib.ggml_op_name(each.op)) for each in (tensor, after)]
        return names == ["RMS_NORM", "MUL"] and tensor in (after.src[0], after.src[1])

    def _choose_threads(self) -> ThreadChoice | None:
        """The choice for graphs of about as many ops and results; None if results depend on the number of threads.

        Views do not count, nor what is written in place: a cache is as large in steps of one token as in steps of 16.
        """
        order = self._builder.order
        if self._services.threads == 1 or not SAME_ON_THREADS or any(map(self._splits_history, order)):
            return None
        elements = sum(math.prod(tensor.ne) for tensor in order if tensor.view_src == NULL)
        return self._services.thread_choices.of((len(order), elements.bit_length()))

    def _splits_history(self, tensor: Ptr) -> bool:
        """Whether ggml gives each thread a part of the history, and adds up their results."""
        is_attention = text(self._lib.ggml_op_name(tensor.op)) == "FLASH_ATTN_EXT"
        return is_attention and tensor.src[0].ne[1] == 1 and tensor.src[1].ne[1] >= SPLIT

    def _output(self, tensor: Ptr, nbytes: int) -> Bytes:
        return np.frombuffer(ffi.buffer(tensor.data, nbytes), np.uint8)

    def report(self) -> list[str]:
        ops = [tensor for tensor in self._builder.order if tensor.op not in self._library.view_ops]
        return [f"{self._services.cpu.id} {self._library.describe(tensor)}" for tensor in ops]
