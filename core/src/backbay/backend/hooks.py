"""The hooks: all methods and attributes that a plugin implements or may override. The rest of a backend is final."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..composites.graph_builder import composed_support
from ..data.buffers import Buffer
from ..errors import BackbayError
from ..graph.graph import Cancel, Graph, Plan
from ..memory.ledger import Entry, Ledger
from ..ops.op_declaration import Op
from ..types.backend_declarations import KERNEL, DeviceInfo, Precision, Support
from ..types.cache_config import CacheConfig
from ..types.gpu_layers import Placement
from ..types.params import BackendParams, Option
from ..types.spec import Spec
from .helper_processes import without_forks

if TYPE_CHECKING:
    from ..gguf import ModelFile, TensorInfo


Progress = Callable[[float], None]
"""Called with 0.0 to 1.0, never less than before."""


class BackendMetaclass(ABCMeta):
    """Calling a class makes a backend, and starts it when the constructors of all its classes are done.

    `start` and the hooks that it calls thus see a complete object, and a subclass need not set its fields first.
    """

    if not TYPE_CHECKING:  # type checkers would lose the signature of the constructor

        @without_forks()
        def __call__(cls, *args: Any, **keywords: Any) -> Any:
            backend = super().__call__(*args, **keywords)
            try:
                backend.start()
            except BaseException:
                backend.abandon()
                raise
            return backend


class BackendHooks(metaclass=BackendMetaclass):
    """The hooks of a backend: a plugin implements the abstract ones, and may override the others."""

    contract_version: ClassVar[str | int | tuple[int, int]]
    """The version of the contract that the plugin was written for, such as "1.1"."""
    kernels: ClassVar[Mapping[Op[Any, Any], Callable[..., Any]]] = {}
    """The ops that the plugin has kernels for. For other ops core runs a composite, if there is one."""
    deterministic: ClassVar[bool] = True
    """Whether a plan that runs again on the same data gives the same bits. The bits may differ in another context,
    with another layout or another number of threads."""
    composes_refusals: ClassVar[bool] = False
    """Whether core runs the composite of an op, if it has one, where `compile` raises RefusalError with the op's node."""
    splits_layers: ClassVar[bool] = False
    """Whether some of a model's layers may be on a GPU and the others elsewhere."""
    options: ClassVar[Mapping[str, Option]] = {}
    """The options that `BackendParams.options` may hold."""
    priority: ClassVar[int | None] = None
    """The rank when "auto" chooses between backends that both have a GPU, or both have none: the highest wins.

    Among equals, the engine takes the one that a trial finds fastest for the model.
    A backend without a priority comes last, whatever its devices: to install a backend does not mean to choose it.
    ggml and onnx have 0, cpu_ref has -100.
    """
    name: str = "unnamed"
    """The name of the entry point."""

    model: ModelFile | None
    params: BackendParams

    @property
    @abstractmethod
    def ledger(self) -> Ledger:
        """The ledger of all memory; core makes it."""

    # -- to implement ------------------------------------------------------------------------------------

    @abstractmethod
    def devices(self) -> list[DeviceInfo]:
        """The devices of this backend, the CPU first."""

    @abstractmethod
    def compile(self, graph: Graph) -> Plan:
        """Turn a checked graph into a plan; allocate only if `params.alloc_memory`.

        RefusalError says that an op which `supports` accepts does not run with these shapes, layouts or attributes.
        """

    @abstractmethod
    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        """Allocate memory for a leaf; MemoryError if there is not enough."""

    @abstractmethod
    def weight(self, info: TensorInfo) -> Buffer:
        """The memory of a weight, which holds its data once `read_weights` is done."""

    @abstractmethod
    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        """The precision of an op on given operands; error bounds are derived from it."""

    # -- to override -------------------------------------------------------------------------------------

    def start(self) -> None:
        """The second step of opening: all constructors are done, and the ledger is there.

        A plugin that extends this method calls `super().start()` first, which checks the params and books the weights.
        """

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        """How an op runs on given operands: by a kernel, by core's composite, or not at all.

        Core runs a composite only if the backend supports each of its parts. The parts are found with attributes at
        their defaults. Other attributes may need more ops (a softcap needs tanh); `compile` then refuses the missing
        op. Where operands and defaults do not determine the parts, the composite counts as complete.
        """
        if op in self.kernels or op.view:
            return KERNEL
        return composed_support(op, specs, self.supports)

    def batch_invariant(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> bool:
        """Whether each row of the op's result has the same bits, whichever other rows there are, and however many.

        A row is the result for one column of a product, one row of a norm, or one token of attention.
        """
        return False

    def thread_invariant(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> bool:
        """Whether the op's result has the same bits with any number of threads."""
        return False

    def precision_on(self, device: str, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        """The precision of an op on one device, for a backend whose devices compute differently."""
        return self.precision(op, specs)

    def cache_config(self) -> CacheConfig:
        """The properties that a cache should have on this backend."""
        return CacheConfig()

    def device_of(self, placement: Placement) -> str:
        """The id of the device that a placement stands for."""
        return self.ledger.devices[0][0]  # not `devices`, which asks the system how much memory is free

    def weight_entry(self, weight: str) -> Entry:
        """The line of the memory report that a weight belongs to."""
        placement = self.placement_of(weight)
        if placement.layer is None:
            return Entry(self.ledger.devices[0][0], "input_weights")
        return Entry(self.device_of(placement), "weights", placement.layer)

    def book_weights(self) -> None:
        """Book the memory of all weights. By default they stay in the mapped file, and nothing is allocated."""
        for info in self.model.tensors.values() if self.model is not None else ():
            self.ledger.take(self.weight_entry(info.name), info.nbytes, lambda: None)

    def read_weights(self, progress: Progress, cancel: Cancel | None) -> None:
        """Read the weights' data into the buffers that `weight` returns, and report progress (0.0 to 1.0)."""

    def export(self, graph: Graph, names: Mapping[int, str], folder: Path) -> Path:
        """Write a graph and its weights as a model for the backend's engine alone, without backbay.

        `names` maps node indices of leaves and results to names in the model. Returns the path of the file to open.
        """
        raise BackbayError(f"backend {self.name!r} writes no models; onnx does")

    def release(self) -> None:
        """Free the plugin's other resources. Called once, after all buffers and plans are closed."""

    def avoidances(self) -> Mapping[str, str]:
        """The reasons why other code runs in place of the engine's own, by op and dtype ("concat q8_0"), for reports."""
        return {}

    @classmethod
    def trial_seconds(cls, options: Mapping[str, Any] = {}) -> float:
        """Seconds beyond the usual that a first start with some options may take here, such as while a driver compiles kernels.

        A probe waits that much longer before it calls the backend hung.
        """
        return 0.0

    @classmethod
    def diagnose(cls) -> dict[str, str]:
        """Lines for `backbay doctor` about this machine: library, version, CPU features.

        A probe calls it in a child process, before it makes a backend; if it crashes, the backend does not work.
        """
        return {}

    # -- given -------------------------------------------------------------------------------------------

    @abstractmethod
    def placement_of(self, weight: str) -> Placement:
        """The placement of a weight; core decides."""
