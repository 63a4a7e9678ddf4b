"""The scheduler that runs graphs over several devices, and the memory there that all plans share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from backbay import BackendUnavailableError, OptionError
from backbay.plugin import Cancel, Entry, Ledger

from ..devices.device import Device
from ..devices.rpc_servers import free, session
from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library
from .cancelling import stopping

if TYPE_CHECKING:
    from .multi_device_plan import ScheduledPlan

MOST = 16  # devices of a scheduler of ggml's


@final
class Stage:
    """One of ggml's schedulers, on which one plan at a time is placed; plans that take turns are placed anew.

    Its memory is, on each device, as large as the plan needs that takes the most there. A plan that needs more makes
    all of it anew. It is freed with the last plan.
    """

    def __init__(
        self,
        library: Library,
        ledger: Ledger,
        devices: Sequence[Device],
        prepare_cpu: Callable[[Ptr], None],
        *,
        holds: bool,
    ) -> None:
        if len(devices) > MOST:
            raise OptionError(f"ggml's scheduler takes {MOST} devices, the CPU included, not {len(devices)}")
        self._lib, self._ledger, self._holds = library.lib, ledger, holds
        self.devices = devices  # the CPU last, as ggml wants it
        self._servers = tuple({device.server for device in devices if device.server is not None})
        self._plans: list[ScheduledPlan] = []
        self._current: ScheduledPlan | None = None
        self._scheduler: Ptr = NULL
        self._sizes = [0] * len(devices)
        self._graph_size = 0
        self._freed = 0  # on servers, before the current plan was placed
        with self.session():
            self._backends = [library.lib.ggml_backend_dev_init(device.handle, NULL) for device in devices]
        if NULL in self._backends:
            raise MemoryError(f"{devices[self._backends.index(NULL)].id} cannot be used")
        prepare_cpu(self._backends[-1])

    def session(self) -> Any:
        """What reaches the devices happens within it."""
        return session(*self._servers)

    def join(self, plan: ScheduledPlan) -> int:
        """Make room for one more plan; returns the bytes that were allocated for it."""
        before = sum(self._sizes)
        self._plans.append(plan)
        try:
            plan.need = self._measure(plan)
            fits = plan.graph_size <= self._graph_size
            if not (fits and all(map(int.__le__, plan.need, self._sizes))):
                self._remake()
        except BaseException:
            self.leave(plan)
            raise
        return max(0, sum(self._sizes) - before)

    def prepare(self) -> None:
        """Make the memory of these plans anew, if another one that did not fit took it."""
        if self._scheduler == NULL:
            self._remake()

    def leave(self, plan: ScheduledPlan) -> None:
        """One plan less; the last one takes the memory along."""
        self._plans.remove(plan)
        if self._current is plan:
            self._current = None
        if not self._plans:
            self._drop()

    def run(self, plan: ScheduledPlan, cancel: Cancel | None) -> int:
        """Compute a plan; returns ggml's status. The caller holds the session."""
        if self._current is not plan or self._freed != self._count_freed():
            self._place(plan)  # as a graph that was not sent before
        with stopping(self._lib, self._scheduler, cancel):
            return int(self._lib.ggml_backend_sched_graph_compute(self._scheduler, plan.graph))

    def wait(self) -> None:
        """Until servers have done what they were sent, or turn out to be gone. The caller holds the session."""
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        for device in self.devices:
            if device.server is not None:
                self._lib.ggml_backend_dev_memory(device.handle, free, total)

    def splits(self, plan: ScheduledPlan) -> int:
        """In how many runs of ops on one device a plan is computed."""
        with self.session():
            if self._current is not plan:
                self._place(plan)
            return int(self._lib.ggml_backend_sched_get_n_splits(self._scheduler))

    def allocated(self) -> dict[str, int]:
        """What the scheduler holds on each device, asked of ggml."""
        if self._scheduler == NULL:
            return {}
        size = self._lib.ggml_backend_sched_get_buffer_size
        pairs = zip(self.devices, self._backends, strict=True)
        return {device.id: int(size(self._scheduler, backend)) for device, backend in pairs}

    def close(self) -> None:
        self._drop()
        for stage_backend in self._backends:
            self._lib.ggml_backend_free(stage_backend)
        self._backends = []

    # -- memory ------------------------------------------------------------------------------------------

    def _measure(self, plan: ScheduledPlan) -> list[int]:
        """The bytes that a plan needs on each device, found on a scheduler that is thrown away."""
        sizes = ffi.new("size_t[]", len(self.devices))
        with self.session(), self._temporary(plan.graph_size) as scheduler:
            self._assign(scheduler, plan)
            _keep_assigned(scheduler)
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

    def _remake(self) -> None:
        """Book what the plans need, and let a new scheduler allocate it."""
        self._drop()
        self._graph_size = max(plan.graph_size for plan in self._plans)
        need = [max(sizes) for sizes in zip(*(plan.need for plan in self._plans), strict=True)]
        try:
            for index, device in enumerate(self.devices):
                self._ledger.take(Entry(device.id, "graph"), need[index], lambda: None)
                self._sizes[index] = need[index]
            if self._holds:
                self._reserve()
        except BaseException:
            self._drop()
            raise

    def _reserve(self) -> None:
        with self.session():
            self._scheduler = self._new(self._graph_size)
            held = all(self._reserve_for(plan) for plan in self._plans)  # after a refusal it is of no use
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

    def _drop(self) -> None:
        """Free the scheduler with its memory; plans are placed anew before they run."""
        scheduler, self._scheduler = self._scheduler, NULL
        self._current = None
        if scheduler != NULL:
            for plan in self._plans:
                plan.restore()
            free(self._servers, lambda: self._lib.ggml_backend_sched_free(scheduler))
        for index, device in enumerate(self.devices):
            if self._sizes[index]:
                self._ledger.give_back(Entry(device.id, "graph"), self._sizes[index])
                self._sizes[index] = 0

    # -- placing -----------------------------------------------------------------------------------------

    def _place(self, plan: ScheduledPlan) -> None:
        """Give the tensors of a plan their places; those of the plan before lose theirs."""
        if self._current is not None:
            self._current.restore()
        self._current = None
        plan.restore()
        self._assign(self._scheduler, plan)
        if not self._lib.ggml_backend_sched_alloc_graph(self._scheduler, plan.graph):
            raise MemoryError("ggml could not place a graph")
        self._current, self._freed = plan, self._count_freed()

    def _count_freed(self) -> int:
        return sum(server.freed for server in self._servers)

    def _assign(self, scheduler: Ptr, plan: ScheduledPlan) -> None:
        self._lib.ggml_backend_sched_reset(scheduler)
        backends = dict(zip([device.id for device in self.devices], self._backends, strict=True))
        for tensor, device in plan.settled:
            self._lib.ggml_backend_sched_set_tensor_backend(scheduler, tensor, backends[device.id])

    def _new(self, graph_size: int) -> Ptr:
        count = len(self.devices)
        backends = ffi.new("ggml_backend_t[]", self._backends)
        kinds = ffi.new("ggml_backend_buffer_type_t[]", [device.buffer_type for device in self.devices])
        return self._lib.ggml_backend_sched_new(backends, kinds, count, graph_size, False, False)


def _keep_assigned(scheduler: Ptr) -> None:
    """Tell a scheduler that it is reset already: measuring resets it first, and would forget what runs where.

    That is its first byte, `is_reset`, in every version that is supported; it says no once something was assigned.
    """
    is_reset = ffi.cast("uint8_t *", scheduler)
    if is_reset[0] != 0:
        raise BackendUnavailableError("the scheduler of this libggml is laid out in a way that is not known")
    is_reset[0] = 1
