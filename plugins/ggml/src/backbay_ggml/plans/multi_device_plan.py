"""A plan that runs over several devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from backbay import Graph
from backbay.internals import Bytes, Timings, cached_property
from backbay.plugin import Cancel, check_cancel

from ..devices.device import Device
from ..devices.op_placement import OpPlacement
from ..library.abi import Ptr, address, ffi
from .graph_plan import GraphPlan, check_status
from .op_clock import OpClock, TimedOp
from .scheduler import Scheduler
from .services import Services


@final
class MultiDevicePlan(GraphPlan):
    """A graph that ggml's scheduler runs, with constants and copies of the outputs in host memory."""

    def __init__(self, services: Services, graph: Graph, scheduler: Scheduler) -> None:
        op_placement = OpPlacement(
            services.library, scheduler.devices, graph, services.device_of, services.product_home
        )
        super().__init__(services, graph, op_placement)
        self._scheduler, self._op_placement = scheduler, op_placement
        self._copies: dict[int, tuple[Ptr, Bytes]] = {}  # of outputs, by the address of their tensors
        self.placed_ops: list[tuple[Ptr, Device]] = []
        self.need: list[int] = []  # bytes on each device, as the scheduler measured them

    def _build(self) -> None:
        self.placed_ops = self._op_placement.placed_ops(self._builder)
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
            address(tensor): (tensor, np.empty(self._lib.ggml_nbytes(tensor), np.uint8)) for tensor in copied
        }

    def close(self) -> None:
        super().close()
        self._copies = {}

    def _leave(self) -> None:
        self._scheduler.leave(self)

    def _compute(self, cancel: Cancel | None, clock: OpClock | None = None) -> None:
        self._scheduler.prepare()
        with self._scheduler.turn(), self._scheduler.session():
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
    def _timed_ops(self) -> dict[int, TimedOp]:
        owners = self._builder.owners()
        return {
            address(tensor): TimedOp(owners.get(address(tensor)), device.id)
            for tensor, device in self.placed_ops
        }

    def _output(self, tensor: Ptr, nbytes: int) -> Bytes:
        return self._copies[address(tensor)][1][:nbytes]

    def restore(self) -> None:
        """Undo the scheduler's changes of the graph: copies in place of operands, and places."""
        for tensor, sources in self._sources:
            ffi.buffer(tensor.src)[:] = sources
        self._unplace()

    def report(self) -> list[str]:
        return [f"{device.id} {self._library.describe(tensor)}" for tensor, device in self.placed_ops]
