"""The class of the backend: its device, its memory, its precision."""

from collections.abc import Sequence
from typing import Any

from backbay import UnsupportedOpError
from backbay.gguf import TensorInfo
from backbay.plugin import (
    Backend,
    Buffer,
    Cancel,
    DeviceInfo,
    DType,
    Entry,
    Graph,
    Op,
    Placement,
    Plan,
    Precision,
    Progress,
    Spec,
    Support,
    check_cancel,
    host_memory,
    unsupported,
)

from .device import Device, DeviceBuffer, the_device
from .kernels import kernel
from .plan import DEVICE, WgpuPlan
from .shaders import READ


class WgpuBackend(Backend):
    """One device of WebGPU: all leaves, weights and results lie on it."""

    contract_version = "1.2"
    kernels = kernel

    @property
    def device(self) -> Device:
        return the_device()

    def start(self) -> None:
        super().start()
        self.weights: dict[str, DeviceBuffer] = {}

    def devices(self) -> list[DeviceInfo]:
        total, free = host_memory()
        cpu = DeviceInfo("CPU:0", "CPU", total_memory=total, free_memory=free)
        return [cpu, DeviceInfo(DEVICE, self.device.name)]

    @classmethod
    def diagnose(cls) -> dict[str, str]:
        return {"adapter": the_device().name, "driver": the_device().driver}

    def device_of(self, placement: Placement) -> str:
        return DEVICE

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        return Precision(DType.F32, DType.F32, flushes_subnormals=True)

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        for spec in specs:
            if spec is not None and spec.dtype not in READ and not op.view:
                return unsupported(f"the shaders read no {spec.dtype}")
        return super().supports(op, specs)

    def compile(self, graph: Graph) -> Plan:
        for node in graph.nodes:  # a cast's dtype is an attribute, which `supports` does not see
            if node.op is not None and node.op.name == "cast" and node.dtype.is_quantized:
                raise UnsupportedOpError(
                    f"backend {self.name!r} cannot run cast: {node.args[0]} to {node.dtype}"
                )
        return WgpuPlan(self, graph)

    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        return DeviceBuffer(self.device, spec.nbytes, poison=self.params.debug.poison)

    def weight(self, info: TensorInfo) -> Buffer:
        if info.name not in self.weights:
            self.weights[info.name] = DeviceBuffer(self.device, info.nbytes)
        return self.weights[info.name]

    def weight_entry(self, weight: str) -> Entry:
        return Entry(DEVICE, "weights", self.placement_of(weight).layer or 0)

    def book_weights(self) -> None:
        for info in self.model.tensors.values() if self.model is not None else ():
            self.ledger.take(self.weight_entry(info.name), info.nbytes, lambda: None, mapped=False)

    def read_weights(self, progress: Progress, cancel: Cancel | None) -> None:
        assert self.model is not None
        for done, (name, info) in enumerate(self.model.tensors.items(), 1):
            check_cancel(cancel)
            self.weight(info).write(self.model.data(name))  # `data` raises if the file has changed
            self.model.drop_pages(name)  # the device has its own copy
            progress(done / len(self.model.tensors))
