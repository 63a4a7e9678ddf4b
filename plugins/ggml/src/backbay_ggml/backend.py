"""The backend: graphs lowered to ggml's, run on the CPU or over several devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, final

from backbay import (
    Backend,
    BackendParams,
    Buffer,
    CacheConfig,
    DeviceInfo,
    DType,
    FlashAttention,
    Graph,
    NoMemoryError,
    Op,
    Option,
    Placement,
    Plan,
    Precision,
    Spec,
    Support,
    ops,
)
from backbay.gguf import ModelFile, TensorInfo, whole
from backbay.internals import COMPOSITE, cached_property, choice_of, return_large_blocks, usable_cores
from backbay.plugin import GRAPH, Cancel, Progress, unsupported

from . import doctor
from .avoided_calls import avoided_calls
from .devices.device import Device, find_devices, untried_gpus
from .devices.device_trial import WHOLE as TRIAL_SECONDS
from .devices.layer_assignment import LayerAssignment, assign_layers_of_model, assign_without_model
from .devices.rpc_servers import PATIENCE, parse_endpoints, parse_timeout
from .library.avoidance import LONG_HEADS
from .library.library import load_library
from .lowering import support
from .lowering.support import coarsest_precision, op_precision, precision_of_device
from .ops import KERNELS
from .plans.callbacks import StopFlag
from .plans.cpu_plan import CpuPlan, PlanArena
from .plans.graph_plan import GgmlPlanResources
from .plans.multi_device_plan import MultiDevicePlan, MultiDeviceScheduler
from .plans.repeated_rows import TwinPlan, are_known, ids_of_several_rows
from .plans.thread_choice import ThreadCountChooser
from .tensors.buffers import DeviceLeafBuffer, LeafBuffer
from .tensors.tensor_builder import four_dimensions
from .weights.model_weights import AUTO, COPIED, EMBEDDINGS, MAPPED, ModelWeights, is_tied

KNOWN, NOTHING = "known", "nothing"  # values of the option `avoid`
CACHE_PADDING = 32  # the block of quantized caches
FLASH_CACHES = (DType.F16, DType.F32, DType.BF16, DType.Q8_0, DType.Q4_0)
PERMUTED_CACHES = (DType.F16, DType.F32)
USUAL_HEAD = 128
BY_ROWS = frozenset({ops.rms_norm, ops.layer_norm, ops.l2_norm, ops.softmax})  # one thread computes each row
HEADS, WIDTH, HEAD = map(whole, ("attention.head_count", "embedding_length", "attention.key_length"))


@final
class Ggml(Backend):
    """ggml on the CPU and on the other devices that it reports.

    A graph is lowered once. Leaves, outputs and constants have memory of their own; all contexts share the memory of
    the other tensors: an arena on the CPU, or a scheduler's memory on several devices. `gpu_layers` puts layers on
    devices. Weights that the CPU multiplies faster in another arrangement are copied; the others stay in the mapped
    file.
    """

    contract_version = "1.2"
    kernels = KERNELS
    priority = 0
    splits_layers = True
    options: ClassVar[Mapping[str, Option]] = {
        "library": Option(
            "", str, "the libggml to use, a file or its folder; any version, also a module with ggml inside"
        ),
        "avoid": Option(
            KNOWN,
            choice_of(KNOWN, NOTHING),
            "known or nothing: whether other code takes the place of ggml's where that is wrong or slow",
        ),
        "weights": Option(AUTO, choice_of(AUTO, COPIED, MAPPED), "auto, copied or mapped: where weights lie"),
        "rpc": Option((), parse_endpoints, "HOST:PORT of ggml RPC servers to use, separated by commas"),
        "rpc_timeout": Option(
            PATIENCE, parse_timeout, "seconds that an RPC server may take for an answer, a compute included"
        ),
    }

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        super().__init__(model, params)
        library = load_library(self.option_values["library"])
        self.library = library if self.option_values["avoid"] == KNOWN else library.as_it_is
        return_large_blocks()
        self.threads = params.num_threads or usable_cores()
        self.stop = StopFlag()
        self.weights: ModelWeights | None = None

    def start(self) -> None:
        super().start()
        self.arena = PlanArena(self.library, self.ledger)

    @classmethod
    def trial_seconds(cls, options: Mapping[str, Any] = {}) -> float:
        return TRIAL_SECONDS * untried_gpus(load_library(str(options.get("library", ""))))

    def avoidances(self) -> dict[str, str]:
        return avoided_calls(self.library, self.all_devices)

    @classmethod
    def diagnose(cls) -> dict[str, str]:
        return doctor.diagnose()

    # -- devices -----------------------------------------------------------------------------------------

    @cached_property
    def all_devices(self) -> list[Device]:
        return find_devices(self.library, self.option_values["rpc"], self.option_values["rpc_timeout"])

    def devices(self) -> list[DeviceInfo]:
        return [device.info() for device in self.all_devices]

    def device_of(self, placement: Placement) -> str:
        return self.assignment.device(placement).id

    @cached_property
    def assignment(self) -> LayerAssignment:
        if self.model is None:
            return assign_without_model(self.all_devices, self.params.gpu_layers)
        sizes = [0] * self.ledger.layers
        for info in self.model.tensors.values():
            layer = self.placement_of(info.name).layer
            if layer is not None:
                sizes[layer] += info.nbytes
        if is_tied(self.model):
            sizes[-1] += self.model.tensors[EMBEDDINGS].nbytes
        return assign_layers_of_model(self.all_devices, self.params.gpu_layers, sizes, self.params.max_memory)

    # -- graphs ------------------------------------------------------------------------------------------

    def compile(self, graph: Graph) -> Plan:
        try:
            if self.assignment.others:
                return self._compile_for_devices(graph)
            return CpuPlan(self.services, graph, self.arena).build()
        except NoMemoryError:
            raise
        except MemoryError as error:
            raise self.ledger.failure(GRAPH, 0, str(error) or "the system refused") from error

    def _compile_for_devices(self, graph: Graph) -> Plan:
        make = partial(MultiDevicePlan, self.services, graph, self.scheduler)
        usual, ids = make().build(), [each for each in ids_of_several_rows(graph) if are_known(each)]
        return TwinPlan(ids, usual, lambda: make(repeating=ids).build()) if ids else usual

    @cached_property
    def services(self) -> GgmlPlanResources:
        """The parts of this backend that plans use."""
        return GgmlPlanResources(
            library=self.library,
            ledger=self.ledger,
            params=self.params,
            threads=self.threads,
            thread_choices=defaultdict(partial(ThreadCountChooser, self.threads)),
            flash=self.flash,
            cpu=self.all_devices[0],
            device_of=self.assignment.device,
            weights=self.weights,
            stop=self.stop,
        )

    @cached_property
    def scheduler(self) -> MultiDeviceScheduler:
        """Runs graphs over several devices."""
        return MultiDeviceScheduler(self.services, [*self.assignment.others, self.all_devices[0]])

    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        device = self.assignment.device(placement)
        kind = LeafBuffer if device.is_cpu else DeviceLeafBuffer
        return kind(self.library, device, spec, self.params.debug)

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        devices = [self.all_devices[0], *self.assignment.others]
        return coarsest_precision([self.precision_on(device.id, op, specs) for device in devices])

    def precision_on(self, device: str, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        verdict = next((each.verdict for each in self.all_devices if each.id == device), None)
        if verdict is None:
            return op_precision(self.library, op, specs, flash=self.flash)
        return precision_of_device(verdict, op, specs, flash=self.flash)

    def batch_invariant(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> bool:
        return not self.assignment.others and (op in BY_ROWS or self._multiplies_natively(op, specs))

    def thread_invariant(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> bool:
        return self.batch_invariant(op, specs)

    def _multiplies_natively(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> bool:
        weight = specs[0]
        if op is ops.mulmat_id:
            return weight is not None and weight.dtype.name in self.library.native.formats_of_experts
        if op is not ops.mulmat or weight is None or four_dimensions(weight)[2:] != (1, 1):
            return False
        as_stored = weight.dtype.name in self.library.native.formats
        return as_stored and (self.weights is None or self.weights.on_cpu.multiplies_natively(weight.dtype))

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        if op in self.kernels:
            why_not = support.why_unsupported(self.library, op, specs)
            if why_not:
                return unsupported(why_not)
            is_empty = any(spec is not None and spec.size == 0 for spec in specs)
            if op is ops.scaled_dot_product_attention and is_empty:
                return COMPOSITE
            avoids = LONG_HEADS in self.library.avoidances and self.assignment.others
            if op is ops.delta_rule and avoids and support.has_long_heads(specs):
                return COMPOSITE
        return super().supports(op, specs)

    # -- caches ------------------------------------------------------------------------------------------

    @cached_property
    def flash(self) -> bool:
        """Whether flash attention is used; by default, if every device with layers has it for the model's heads."""
        choice = self.params.flash_attention
        if choice is not FlashAttention.AUTO:
            return choice is FlashAttention.ON
        heads = HEADS.of(self.config, 0, layer=0)
        size = WIDTH.of(self.config, 0) // heads if heads else USUAL_HEAD
        head = HEAD.of(self.config, size, layer=0)
        return all(device.attends(head) for device in self.assignment.others)

    def cache_config(self) -> CacheConfig:
        supported = tuple(
            dtype
            for dtype in (FLASH_CACHES if self.flash else PERMUTED_CACHES)
            if all(
                device.stores(dtype) and (not self.flash or device.attends(128, dtype))
                for device in self.assignment.others
            )
        )
        return CacheConfig(
            cache_padding=CACHE_PADDING, permuted_v=not self.flash, mask_dtype=DType.F16, dtypes=supported
        )

    # -- weights -----------------------------------------------------------------------------------------

    def book_weights(self) -> None:
        if self.model is None:
            return
        output = self.assignment.device(Placement(layer=self.ledger.layers - 1))
        self.weights = ModelWeights(
            self.library, self.model, self.ledger, self.all_devices, output, self.option_values["weights"]
        )
        self.weights.book(self.weight_entry)

    def weight(self, info: TensorInfo) -> Buffer:
        assert self.weights is not None
        return self.weights.buffer(info)

    def read_weights(self, progress: Progress, cancel: Cancel | None) -> None:
        if self.weights is not None:
            self.weights.load(progress, cancel)

    def release(self) -> None:
        if self.weights is not None:
            self.weights.close()
        if "scheduler" in vars(self):
            self.scheduler.close()
        for device in self.all_devices:
            device.close()
