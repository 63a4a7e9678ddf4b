"""The hooks: all that a plugin implements, or may override. Everything else of a backend is core's, and final."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ..building.composite_parts import composed
from ..data.buffer import Buffer
from ..errors import BackbayError
from ..gguf import ModelFile, TensorInfo
from ..graph.cancel import Cancel
from ..graph.graph import Graph
from ..graph.plan import Plan
from ..memory.ledger import Entry, Ledger
from ..ops.declaration import Op
from ..types.params import KERNEL, BackendParams, CacheConfig, DeviceInfo, Option, Precision, Support
from ..types.placement import Placement
from ..types.spec import Spec
from .opening import OpenedInTwoSteps

Progress = Callable[[float], None]
"""Called with 0.0 to 1.0, never less than before."""


class BackendHooks(metaclass=OpenedInTwoSteps):
    """What a plugin implements (abstract), and what it may override."""

    contract_version: ClassVar[str | int | tuple[int, int]]
    """The version of the contract that the plugin was written for, such as "1.1"."""
    kernels: ClassVar[Mapping[Op[Any, Any], Callable[..., Any]]] = {}
    """The ops that the plugin runs by itself. For other ops core runs a composite, if there is one."""
    deterministic: ClassVar[bool] = True
    """Whether a plan that runs again on the same data gives the same bits. Another context, another layout or another
    number of threads may give others."""
    options: ClassVar[Mapping[str, Option]] = {}
    """The options that `BackendParams.options` may hold."""
    priority: ClassVar[int | None] = None
    """The rank among backends where "auto" chooses, and GPUs do not decide: the highest priority wins.

    A backend without a priority comes last, whatever its devices: an installed backend need not be a chosen one. ggml and
    onnx have 0, cpu_ref has -100.
    """
    name: str = "unnamed"
    """The name of the entry point."""

    model: ModelFile | None
    params: BackendParams

    @property
    @abstractmethod
    def ledger(self) -> Ledger:
        """Core's books of all memory."""

    # -- to implement ------------------------------------------------------------------------------------

    @abstractmethod
    def devices(self) -> list[DeviceInfo]:
        """The devices of this backend, the CPU first."""

    @abstractmethod
    def compile(self, graph: Graph) -> Plan:
        """Turn a checked graph into a plan; allocate only if `params.alloc_memory`."""

    @abstractmethod
    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        """Memory for a leaf. MemoryError if there is none."""

    @abstractmethod
    def weight(self, info: TensorInfo) -> Buffer:
        """The memory of a weight, which holds its data once `read_weights` is done."""

    @abstractmethod
    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        """The precision of an op on such operands: error bounds are derived from it."""

    # -- to override -------------------------------------------------------------------------------------

    def start(self) -> None:
        """The second step of opening: it begins when all constructors are done, and has the ledger.

        A plugin that extends this method calls `super().start()` first. That call checks the params and books the weights.
        """

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        """How an op on such operands would run: by a kernel, by core's composite, or not at all.

        Core runs a composite only if the backend supports each of its parts. The parts are found with attributes at
        their defaults. Other attributes may need more ops (a softcap needs tanh); `compile` then refuses the missing
        op. Where operands and defaults do not determine the parts, the composite counts as complete.
        """
        if op in self.kernels or op.view:
            return KERNEL
        return composed(op, specs, self.supports)

    def cache_config(self) -> CacheConfig:
        """The properties that a cache should have on this backend."""
        return CacheConfig()

    def device_of(self, placement: Placement) -> str:
        """The id of the device that a placement means."""
        return self.devices()[0].id

    def weight_entry(self, weight: str) -> Entry:
        """The line of the memory report that a weight belongs to."""
        placement = self.placement_of(weight)
        if placement.layer is None:
            return Entry(self.devices()[0].id, "input_weights")
        return Entry(self.device_of(placement), "weights", placement.layer)

    def book_weights(self) -> None:
        """Book the memory of all weights. Here they stay in the mapped file, and nothing is allocated."""
        for info in self.model.tensors.values() if self.model is not None else ():
            self.ledger.take(self.weight_entry(info.name), info.nbytes, lambda: None)

    def read_weights(self, progress: Progress, cancel: Cancel | None) -> None:
        """Bring the weights' data into the buffers that `weight` returns, and report progress (0.0 to 1.0)."""

    def export(self, graph: Graph, names: Mapping[int, str], folder: Path) -> Path:
        """Write a graph and its weights as a model for the engine behind this backend, which needs no backbay.

        `names` maps the index of a node, a leaf or a result, to its name in the model. Returns the path of the file to
        open.
        """
        raise BackbayError(f"backend {self.name!r} writes no models out; onnx does")

    def release(self) -> None:
        """Free what the plugin holds beside buffers and plans. Called once, when all of them are closed."""

    @classmethod
    def diagnose(cls) -> dict[str, str]:
        """Lines for `backbay doctor` about this machine: library, version, CPU features.

        A probe calls it in a process of its own, before it makes a backend; a crash there means that nothing works.
        """
        return {}

    # -- given -------------------------------------------------------------------------------------------

    @abstractmethod
    def placement_of(self, weight: str) -> Placement:
        """Where a weight belongs; core answers."""
