"""Plans that run over several devices by ggml's scheduler, and the compute memory that they share there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import final

import numpy as np

from backbay import BackendUnavailableError, Graph, Node, OptionError
from backbay.internals import Bytes, Timings, cached_property
from backbay.plugin import Cancel, Entry, check_cancel

from ..devices.device import Device
from ..devices.op_placer import OpPlacer
from ..devices.rpc_servers import free_server_memory, rpc_session, session_lock
from ..library.abi import NULL, Ptr, ffi, tensor_address
from .callbacks import OpClock, OpOrigin
from .graph_plan import ComputeMemory, GgmlPlan, GgmlPlanResources, check_status
from .repeated_rows import last_of_same

MOST_DEVICES = 16  # of one of ggml's schedulers
OPS_PER_PART = 32  # a run that can be cancelled waits for the device after so many ops


@final
class MultiDeviceScheduler(ComputeMemory["MultiDevicePlan"]):
    """Plans over several devices, of which one at a time is placed; plans that take turns are placed again.

    On each device, its memory is as large as the largest need of any plan. A plan that needs more replaces all of it.
    """

    def __init__(self, services: GgmlPlanResources, devices: Sequence[Device]) -> None:
        if len(devices) > MOST_DEVICES:
            raise OptionError(f"ggml schedules {MOST_DEVICES} devices with the CPU, not {len(devices)}")
        super().__init__()
        self._lib, self._ledger = services.library.lib, services.ledger
        self.devices = devices  # the CPU last, as ggml requires
        self._servers = tuple({device.server for device in devices if device.server is not None})
        self._current: MultiDevicePlan | None = None
        self._scheduler: Ptr = NULL
        self._sizes = [0] * len(devices)
        self._graph_size = 0
        self._freed = 0  # the servers' counts of freed memory when the current plan was placed
        with session_lock(), self.session():
            self._backends = [self._lib.ggml_backend_dev_init(device.handle, NULL) for device in devices]
        if NULL in self._backends:
            raise MemoryError(f"{devices[self._backends.index(NULL)].id} cannot be used")
        procedure, cpu, stop = services.library.registry_procedure, self._backends[-1], services.stop
        set_threads = procedure("ggml_backend_set_n_threads")
        ffi.cast("void (*)(ggml_backend_t, int)", set_threads)(cpu, services.threads)
        set_callback = procedure("ggml_backend_set_abort_callback")
        ffi.cast("void (*)(ggml_backend_t, void *, void *)", set_callback)(cpu, stop.callback, stop.data)

    def session(self) -> AbstractContextManager[None]:
        """Must surround every call that reaches the devices."""
        return rpc_session(*self._servers)

    def prepare(self) -> None:
        """Allocate the memory again, if a plan that did not fit has freed it."""
        if self._scheduler == NULL:
            self._replace()

    def leave(self, plan: MultiDevicePlan) -> None:
        if self._current is plan:
            self._current = None
        super().leave(plan)

    def run(self, plan: MultiDevicePlan, cancel: Cancel | None, clock: OpClock | None = None) -> int:
        """Compute a plan within a session; returns ggml's status. A clock notes the times of ops, one by one."""
        if self._current is not plan or self._freed != self._count_freed():
            self._place(plan)  # as a new graph, which is sent to servers again
        if clock is None and cancel is not None:
            clock = OpClock(cancel, OPS_PER_PART)
        if clock is None:
            return int(self._lib.ggml_backend_sched_graph_compute(self._scheduler, plan.graph))
        self._lib.ggml_backend_sched_set_eval_callback(self._scheduler, clock.around_op, NULL)
        try:
            return int(self._lib.ggml_backend_sched_graph_compute(self._scheduler, plan.graph))
        finally:
            self._lib.ggml_backend_sched_set_eval_callback(self._scheduler, NULL, NULL)
            clock.check()

    def wait(self) -> None:
        """Within a session, wait until servers have done their work, or turn out to be gone."""
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        for device in self.devices:
            if device.server is not None:
                self._lib.ggml_backend_dev_memory(device.handle, free, total)

    def allocated(self) -> dict[str, int]:
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

    def make_room(self, plan: MultiDevicePlan) -> None:
        plan.need = self._measure(plan)
        if plan.graph_size > self._graph_size or any(map(int.__gt__, plan.need, self._sizes)):
            self._replace()

    def _measure(self, plan: MultiDevicePlan) -> list[int]:
        sizes = ffi.new("size_t[]", len(self.devices))
        with session_lock(), self.session():
            scheduler = self._new(plan.graph_size)
            try:
                self._assign(scheduler, plan)
                _mark_as_reset(scheduler)
                self._lib.ggml_backend_sched_reserve_size(scheduler, plan.graph, sizes)
                plan.restore()
            finally:
                self._lib.ggml_backend_sched_free(scheduler)
        return [int(size) for size in sizes]

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
        with session_lock(), self.session():
            self._scheduler = self._new(self._graph_size)
            held = all(self._reserve_for(plan) for plan in self._plans)  # the first refusal ends it
            given = self.allocated()
        if not held:
            lacking = [i for i, device in enumerate(self.devices) if given[device.id] < self._sizes[i]] or [0]
            device, size = self.devices[lacking[0]], self._sizes[lacking[0]]
            raise self._ledger.failure(Entry(device.id, "graph"), size, device.why_no_room())

    def _reserve_for(self, plan: MultiDevicePlan) -> bool:
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
            free_server_memory(self._servers, lambda: self._lib.ggml_backend_sched_free(scheduler))
        for index, device in enumerate(self.devices):
            if self._sizes[index]:
                self._ledger.give_back(Entry(device.id, "graph"), self._sizes[index])
                self._sizes[index] = 0

    # -- placing -----------------------------------------------------------------------------------------

    def _place(self, plan: MultiDevicePlan) -> None:
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

    def _assign(self, scheduler: Ptr, plan: MultiDevicePlan) -> None:
        self._lib.ggml_backend_sched_reset(scheduler)
        backends = dict(zip([device.id for device in self.devices], self._backends, strict=True))
        for tensor, device in plan.placed_ops:
            self._lib.ggml_backend_sched_set_tensor_backend(scheduler, tensor, backends[device.id])

    def _new(self, graph_size: int) -> Ptr:
        count = len(self.devices)
        backends = ffi.new("ggml_backend_t[]", self._backends)
        types = ffi.new("ggml_backend_buffer_type_t[]", [device.buffer_type for device in self.devices])
        return self._lib.ggml_backend_sched_new(backends, types, count, graph_size, False, False)


@final
class MultiDevicePlan(GgmlPlan):
    """A graph that ggml's scheduler runs, with constants and copies of the outputs in host memory.

    Rows that are written by one of the `repeating` ids are made equal first: devices write them at once.
    """

    def __init__(
        self,
        services: GgmlPlanResources,
        graph: Graph,
        scheduler: MultiDeviceScheduler,
        *,
        repeating: Collection[Node] = (),
    ) -> None:
        op_placer = OpPlacer(
            services.library, scheduler.devices, graph, services.device_of, services.product_home
        )
        super().__init__(services, graph, op_placer, repeating=repeating)
        self._scheduler, self._op_placer = scheduler, op_placer
        self._copies: dict[int, tuple[Ptr, Bytes]] = {}  # of outputs, by the address of their tensors
        self.placed_ops: list[tuple[Ptr, Device]] = []
        self.need: list[int] = []  # bytes on each device, as the scheduler measured them

    def _build(self) -> None:
        self.placed_ops = self._op_placer.placed_ops(self._builder)
        self._link([tensor for tensor, _ in self.placed_ops])
        self._sources = [(tensor, bytes(ffi.buffer(tensor.src))) for tensor in self._ops]
        # Other plans overwrite what devices hold, so the outputs are copied after each run.
        self._keep([tensor for tensor, _ in self._builder.constants], copied=self._outputs())
        self.nbytes = self._own_size
        if not self._is_empty:
            self._joined = True  # before it does: Ctrl-C may come between
            self.nbytes += self._scheduler.join(self)

    def _allocate(self, nbytes: int, copied: Sequence[Ptr]) -> None:
        super()._allocate(nbytes, copied)
        self._copies = {
            tensor_address(tensor): (tensor, np.empty(self._lib.ggml_nbytes(tensor), np.uint8))
            for tensor in copied
        }

    def close(self) -> None:
        super().close()
        self._copies = {}

    def _leave(self) -> None:
        self._scheduler.leave(self)

    def _compute(self, cancel: Cancel | None, clock: OpClock | None = None) -> None:
        for tensor, ids in self._builder.positions:
            data = last_of_same(ids, (tensor.ne[2], tensor.ne[1]))
            self._lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(data), 0, data.nbytes)
        self._scheduler.prepare()
        with session_lock(), self._scheduler.session():
            with self._services.stop.watching(cancel):
                status = self._scheduler.run(self, cancel, clock)
            check_cancel(cancel)  # no status tells that a device was stopped
            check_status(status)
            for tensor, data in self._copies.values():
                self._lib.ggml_backend_tensor_get(tensor, ffi.from_buffer(data), 0, data.size)
            self._scheduler.wait()

    def _timings(self, clock: OpClock) -> Timings:
        """Each op runs alone, so its device has nothing else to do; copies between devices belong to no op."""
        ops = self._timed_ops
        return lambda: clock.one_by_one(ops)

    @cached_property
    def _timed_ops(self) -> dict[int, OpOrigin]:
        owners = self._builder.owners()
        return {
            tensor_address(tensor): OpOrigin(owners.get(tensor_address(tensor)), device.id)
            for tensor, device in self.placed_ops
        }

    def _output(self, tensor: Ptr, nbytes: int) -> Bytes:
        return self._copies[tensor_address(tensor)][1][:nbytes]

    def restore(self) -> None:
        """Undo the scheduler's changes of the graph: copies in place of operands, and places."""
        for tensor, sources in self._sources:
            ffi.buffer(tensor.src)[:] = sources
        self._unplace()

    def report(self) -> list[str]:
        return [f"{device.id} {self._library.describe(tensor)}" for tensor, device in self.placed_ops]


def _mark_as_reset(scheduler: Ptr) -> None:
    """Keep the assigned devices while a graph is measured: ggml resets a scheduler first, unless it is marked as reset.

    The mark is its first byte, `is_reset`, in every supported version. Assigning a device clears it.
    """
    is_reset = ffi.cast("uint8_t *", scheduler)
    if is_reset[0] != 0:
        raise BackendUnavailableError("the scheduler of this libggml has an unknown memory layout")
    is_reset[0] = 1
