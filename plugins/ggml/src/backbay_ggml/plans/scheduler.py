"""ggml's scheduler, which runs plans over several devices, with the compute memory that they share there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from types import TracebackType
from typing import Any, Protocol, final

from backbay import BackendUnavailableError, OptionError
from backbay.internals import Ledger
from backbay.plugin import Cancel, Entry

from ..devices.device import Device
from ..devices.rpc_servers import free_on, session, turn
from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library
from .op_clock import OpClock
from .shared_memory import SharedMemory

MOST_DEVICES = 16  # of one of ggml's schedulers
OPS_PER_PART = 32  # a run that can be cancelled waits for the device after so many ops


class ScheduledPlan(Protocol):
    """A plan that the scheduler runs."""

    graph: Ptr
    graph_size: int
    placed_ops: list[tuple[Ptr, Device]]
    need: list[int]  # bytes on each device

    def restore(self) -> None: ...


@final
class Scheduler(SharedMemory[ScheduledPlan]):
    """Plans over several devices, of which one at a time is placed; plans that take turns are placed again.

    On each device, its memory is as large as the largest need of any plan. A plan that needs more replaces all of it.
    """

    def __init__(
        self, library: Library, ledger: Ledger, devices: Sequence[Device], prepare_cpu: Callable[[Ptr], None]
    ) -> None:
        if len(devices) > MOST_DEVICES:
            raise OptionError(f"ggml schedules {MOST_DEVICES} devices with the CPU, not {len(devices)}")
        super().__init__()
        self._lib, self._ledger = library.lib, ledger
        self.devices = devices  # the CPU last, as ggml requires
        self._servers = tuple({device.server for device in devices if device.server is not None})
        self._current: ScheduledPlan | None = None
        self._scheduler: Ptr = NULL
        self._sizes = [0] * len(devices)
        self._graph_size = 0
        self._freed = 0  # the servers' counts of freed memory when the current plan was placed
        with self.turn(), self.session():
            self._backends = [library.lib.ggml_backend_dev_init(device.handle, NULL) for device in devices]
        if NULL in self._backends:
            raise MemoryError(f"{devices[self._backends.index(NULL)].id} cannot be used")
        prepare_cpu(self._backends[-1])

    def turn(self) -> Lock:
        """The lock to be held around a session."""
        return turn()

    def session(self) -> AbstractContextManager[None]:
        """Must surround every call that reaches the devices."""
        return session(*self._servers)

    def prepare(self) -> None:
        """Allocate the memory again, if a plan that did not fit has freed it."""
        if self._scheduler == NULL:
            self._replace()

    def leave(self, plan: ScheduledPlan) -> None:
        if self._current is plan:
            self._current = None
        super().leave(plan)

    def run(self, plan: ScheduledPlan, cancel: Cancel | None, clock: OpClock | None = None) -> int:
        """Compute a plan within a session; returns ggml's status. A clock notes the times of ops."""
        if self._current is not plan or self._freed != self._count_freed():
            self._place(plan)  # as a new graph, which is sent to servers again
        watching = _stopping(self._lib, self._scheduler, cancel)
        if clock is not None:
            watching = _timing(self._lib, self._scheduler, clock)
        with watching:
            return int(self._lib.ggml_backend_sched_graph_compute(self._scheduler, plan.graph))

    def wait(self) -> None:
        """Within a session, wait until servers have done their work, or turn out to be gone."""
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        for device in self.devices:
            if device.server is not None:
                self._lib.ggml_backend_dev_memory(device.handle, free, total)

    def splits(self, plan: ScheduledPlan) -> int:
        """The number of parts that each run on one device."""
        with self.turn(), self.session():
            if self._current is not plan:
                self._place(plan)
            return int(self._lib.ggml_backend_sched_get_n_splits(self._scheduler))

    def allocated(self) -> dict[str, int]:
        """The bytes that ggml has allocated on each device."""
        if self._scheduler == NULL:
            return {}
        size = self._lib.ggml_backend_sched_get_buffer_size
        pairs = zip(self.devices, self._backends, strict=True)
        return {device.id: int(size(self._scheduler, backend)) for device, backend in pairs}

    def close(self) -> None:
        self._free()
        for backend in self._backends:
            self._lib.ggml_backend_free(backend)
        self._backends = []

    # -- memory ------------------------------------------------------------------------------------------

    def _total(self) -> int:
        return sum(self._sizes)

    def _make_room(self, plan: ScheduledPlan) -> None:
        plan.need = self._measure(plan)
        if plan.graph_size > self._graph_size or any(map(int.__gt__, plan.need, self._sizes)):
            self._replace()

    def _measure(self, plan: ScheduledPlan) -> list[int]:
        """The bytes that a plan needs on each device, measured by a temporary scheduler."""
        sizes = ffi.new("size_t[]", len(self.devices))
        with self.turn(), self.session(), self._temporary(plan.graph_size) as scheduler:
            self._assign(scheduler, plan)
            _mark_as_reset(scheduler)
            self._lib.ggml_backend_sched_reserve_size(scheduler, plan.graph, sizes)
            plan.restore()
        return [int(size) for size in sizes]

    @contextmanager
    def _temporary(self, graph_size: int) -> Iterator[Ptr]:
        scheduler = self._new(graph_size)
        try:
            yield scheduler
        finally:
            self._lib.ggml_backend_sched_free(scheduler)

    def _replace(self) -> None:
        """Book the needs of all plans, and let a new scheduler allocate them."""
        self._free()
        self._graph_size = max(plan.graph_size for plan in self._plans)
        need = [max(sizes) for sizes in zip(*(plan.need for plan in self._plans), strict=True)]
        try:
            for index, device in enumerate(self.devices):
                self._ledger.take(Entry(device.id, "graph"), need[index], lambda: None)
                self._sizes[index] = need[index]
            if self._ledger.holds:
                self._reserve()
        except BaseException:
            self._free()
            raise

    def _reserve(self) -> None:
        with self.turn(), self.session():
            self._scheduler = self._new(self._graph_size)
            held = all(self._reserve_for(plan) for plan in self._plans)  # the first refusal ends it
            given = self.allocated()
        if not held:
            lacking = [i for i, device in enumerate(self.devices) if given[device.id] < self._sizes[i]] or [0]
            device, size = self.devices[lacking[0]], self._sizes[lacking[0]]
            raise self._ledger.failure(Entry(device.id, "graph"), size, f"{device.id} has no memory left")

    def _reserve_for(self, plan: ScheduledPlan) -> bool:
        self._assign(self._scheduler, plan)
        held = self._lib.ggml_backend_sched_reserve(self._scheduler, plan.graph)
        plan.restore()
        return bool(held)

    def _free(self) -> None:
        scheduler, self._scheduler = self._scheduler, NULL
        self._current = None
        if scheduler != NULL:
            for plan in self._plans:
                plan.restore()
            free_on(self._servers, lambda: self._lib.ggml_backend_sched_free(scheduler))
        for index, device in enumerate(self.devices):
            if self._sizes[index]:
                self._ledger.give_back(Entry(device.id, "graph"), self._sizes[index])
                self._sizes[index] = 0

    # -- placing -----------------------------------------------------------------------------------------

    def _place(self, plan: ScheduledPlan) -> None:
        """Give the tensors of a plan their places; the tensors of the plan before lose theirs."""
        if self._current is not None:
            self._current.restore()
        self._current = None
        plan.restore()
        # ggml takes the places of the last graph for any other with as many nodes, whatever its order.
        if not self._reserve_for(plan):
            raise MemoryError("ggml could not place a graph")
        self._assign(self._scheduler, plan)
        if not self._lib.ggml_backend_sched_alloc_graph(self._scheduler, plan.graph):
            raise MemoryError("ggml could not place a graph")
        self._current, self._freed = plan, self._count_freed()

    def _count_freed(self) -> int:
        return sum(server.freed for server in self._servers)

    def _assign(self, scheduler: Ptr, plan: ScheduledPlan) -> None:
        self._lib.ggml_backend_sched_reset(scheduler)
        backends = dict(zip([device.id for device in self.devices], self._backends, strict=True))
        for tensor, device in plan.placed_ops:
            self._lib.ggml_backend_sched_set_tensor_backend(scheduler, tensor, backends[device.id])

    def _new(self, graph_size: int) -> Ptr:
        count = len(self.devices)
        backends = ffi.new("ggml_backend_t[]", self._backends)
        types = ffi.new("ggml_backend_buffer_type_t[]", [device.buffer_type for device in self.devices])
        return self._lib.ggml_backend_sched_new(backends, types, count, graph_size, False, False)


def _mark_as_reset(scheduler: Ptr) -> None:
    """Keep the assigned devices while a graph is measured: ggml resets a scheduler first, unless it is marked as reset.

    The mark is its first byte, `is_reset`, in every supported version. Assigning a device clears it.
    """
    is_reset = ffi.cast("uint8_t *", scheduler)
    if is_reset[0] != 0:
        raise BackendUnavailableError("the scheduler of this libggml has an unknown memory layout")
    is_reset[0] = 1


@contextmanager
def _timing(lib: Any, scheduler: Ptr, clock: OpClock) -> Iterator[None]:
    """While this lasts, ops run one by one, between calls of a clock."""
    lib.ggml_backend_sched_set_eval_callback(scheduler, clock.around_op, NULL)
    try:
        yield
    finally:
        lib.ggml_backend_sched_set_eval_callback(scheduler, NULL, NULL)
        clock.check()


@contextmanager
def _stopping(lib: Any, scheduler: Ptr, cancel: Cancel | None) -> Iterator[None]:
    """While this lasts, a set `cancel` stops devices other than the CPU too, at the end of a part."""
    if cancel is None:
        yield
        return
    seen = 0
    raised: list[BaseException] = []

    def ends_part(tensor: Ptr, before: bool, data: Ptr) -> bool:
        nonlocal seen
        if not before:  # a part was computed: whether to go on
            return not cancel.is_set()
        seen += 1
        return cancel.is_set() or seen % OPS_PER_PART == 0

    def stop(kind: type[BaseException], error: BaseException, trace: TracebackType) -> bool:
        raised.append(error)  # Ctrl-C, or what `cancel` raises
        return False

    callback = ffi.callback("bool(ggml_tensor *, bool, void *)", ends_part, onerror=stop)
    lib.ggml_backend_sched_set_eval_callback(scheduler, callback, NULL)
    try:
        yield
    finally:
        lib.ggml_backend_sched_set_eval_callback(scheduler, NULL, NULL)
    if raised:
        raise raised[0]
