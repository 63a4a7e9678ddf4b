"""The backend: supported ops, the placement of memory, and the way from a graph to a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from backbay import (
    Backend,
    BackendParams,
    Buffer,
    CacheConfig,
    DeviceInfo,
    DType,
    Graph,
    Op,
    Option,
    Placement,
    Precision,
    Spec,
    Support,
    ops,
)
from backbay.gguf import ModelFile, TensorInfo, whole
from backbay.internals import COMPOSITE, cached_property, return_large_blocks
from backbay.plugin import (
    CPU,
    Cancel,
    Entry,
    MappedBuffer,
    Progress,
    Workspace,
    conversion_gap,
    host_memory,
    unsupported,
)
from backbay_native import ATTENTION, NativeCode

from .memory.buffers import DeviceBuffer, LeafBuffer
from .ops import KERNELS
from .plans.export import export
from .plans.plan import OnnxPlan
from .plans.session_cache import OnnxPlanResources, SessionCache
from .session.device import Device, choose_device
from .session.doctor import diagnose
from .session.layer_assignment import LayerAssignment, assign_layers_of_model
from .session.native import NO_NATIVE, native_code
from .session.providers import GPU_PROVIDERS, HOST_PROVIDER
from .session.runtime import load_runtime
from .session.session import return_arena
from .weights.packing import ENCODINGS
from .weights.store import WeightStore

PRODUCTS = (ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
LATENT = whole("attention.kv_lora_rank")  # of latent attention, which native code does not know


def choice_of(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"it must be {' or '.join(choices)}")
        return str(value)

    return parse


class OnnxBackend(Backend):
    """ONNX Runtime on the CPU and on GPUs: one session per structure of graphs, sizes fed as data."""

    contract_version = "1.2"
    kernels = KERNELS
    priority = 0
    splits_layers = True
    options = {
        "precision": Option(
            "fast",
            choice_of("fast", "exact"),
            "fast: products with quantized weights round activations to blocks of int8, as ggml does; "
            "exact: activations stay float32",
        ),
        "provider": Option(
            "auto",
            choice_of("auto", HOST_PROVIDER.option, *[provider.option for provider in GPU_PROVIDERS]),
            "auto: a GPU through CUDA if one works, else the CPU; others: this provider, or an error with the reason",
        ),
        "cuda_graphs": Option(
            "off",
            choice_of("off", "on"),
            "on: CUDA plays the third run of a graph, and later ones, as a CUDA graph, which has not been tried on a GPU",
        ),
        "exports": Option(
            "own",
            choice_of("own", "standard"),
            "own: exports use ops of ONNX Runtime's own; standard: ops of the ONNX standard alone, for other engines",
        ),
        "threads": Option(
            "own",
            choice_of("own", "shared"),
            "own: each session has a pool of threads, which sleep between runs; shared: all sessions of the process use one "
            "pool, sized by its first user, and ONNX Runtime then refuses other code's sessions with their own",
        ),
    }

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        super().__init__(model, params)
        load_runtime()
        return_large_blocks()
        self._support: dict[tuple[Any, ...], Support] = {}  # asked for each node of each graph

    @cached_property
    def device(self) -> Device:
        device = choose_device(self.option_values["provider"], self.params.gpu_layers, self.blocks.count)
        return replace(
            device, records=self.option_values["cuda_graphs"] == "on" and bool(device.provider.recording)
        )

    @cached_property
    def layers(self) -> LayerAssignment:
        return assign_layers_of_model(self.device, self.params.gpu_layers, self.model, self.blocks.count)

    @cached_property
    def services(self) -> OnnxPlanResources:
        ids = (self.device.id, CPU) if self.layers.splits else (self.device.id,)
        return OnnxPlanResources(
            params=self.params,
            device=self.device,
            layers=self.layers,
            ledger=self.ledger,
            weight_entry=self.weight_entry,
            weights=self.weights,
            workspaces={id: Workspace(self.ledger, Entry(id, "graph")) for id in ids},
            exact=self.is_exact,
            shared_threads=self.option_values["threads"] == "shared",
            native=self.native,
        )

    @cached_property
    def sessions(self) -> SessionCache:
        return SessionCache(self.services)

    @cached_property
    def native(self) -> NativeCode:
        """Native code, if the CPU uses it. It reads weights in the file; copies of them are packed by ONNX Runtime."""
        on_cpu = self.device.is_host or self.layers.splits
        used = on_cpu and not (self.is_exact or self.copies_weights)
        return native_code() if used else NO_NATIVE

    @property
    def is_exact(self) -> bool:
        return bool(self.option_values["precision"] == "exact")

    def devices(self) -> list[DeviceInfo]:
        total, free = host_memory()
        host = DeviceInfo(CPU, HOST_PROVIDER.title, total_memory=total, free_memory=free)
        if self.device.is_host:
            return [host]
        return [host, DeviceInfo(self.device.id, self.device.provider.title, is_gpu=True)]

    def device_of(self, placement: Placement) -> str:
        return CPU if self.layers.is_on_cpu(placement) else self.device.id

    def weight_entry(self, weight: str) -> Entry:
        place = self.layers.place_of_weight(weight, self.placement_of(weight))
        if place.layer is None:
            return Entry(CPU, "input_weights")
        return Entry(self.device_of(place), "weights", place.layer)

    def cache_config(self) -> CacheConfig:
        """Halves first where native code reads them as they are; else each step would make a copy in float32."""
        if self.device.is_host and self.native.has(ATTENTION) and not LATENT.of(self.config, 0):
            return CacheConfig(dtypes=(DType.F16, DType.F32, DType.BF16))
        return CacheConfig(dtypes=(DType.F32, DType.F16, DType.BF16))

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        key = (op, *[None if spec is None else spec.dtype for spec in specs])
        found = self._support.get(key)
        if found is None:
            found = self._support[key] = self._supports(op, specs)
        if op is ops.scaled_dot_product_attention and found and not is_one_attention(specs):
            return COMPOSITE
        return found

    def _supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        """The part that dtypes decide."""
        if gap := quantizing_gap(op, specs) or conversion_gap(op, specs):
            return unsupported(gap)
        return super().supports(op, specs)

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        packed = op in PRODUCTS and specs[0] is not None and specs[0].dtype in ENCODINGS
        return Precision(
            DType.Q8_0 if packed and not self.is_exact else DType.F32,
            DType.F32,
            flushes_subnormals=self.device.provider.flushes_subnormals,
        )

    def batch_invariant(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> bool:
        """Products by native code are; ONNX Runtime itself promises nothing."""
        weight = specs[0]
        is_product = op is ops.mulmat and weight is not None and weight.dtype.name in self.native.formats
        return is_product and self.device.is_host

    def thread_invariant(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> bool:
        return self.batch_invariant(op, specs)

    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        if self.layers.lies_on_device(spec, placement):
            return DeviceBuffer(self.device, spec.nbytes, self.params.debug)
        return LeafBuffer(spec.nbytes, self.params.debug)

    def weight(self, info: TensorInfo) -> Buffer:
        assert self.model is not None
        return MappedBuffer(self.model.data(info.name))

    def book_weights(self) -> None:
        self.weights = WeightStore(
            self.model, self.device, self.ledger, self.weight_entry, self._reads_stored
        )
        for info in self.model.tensors.values() if self.model is not None else ():
            packs = self.weights.packs(info)
            if packs:
                self.weights.book_packed(info)
            entry = self.weight_entry(info.name)
            if self.copies_weights or not packs:
                self.ledger.take(entry, info.nbytes, lambda: None)
            if self.device.has_memory and entry.device == self.device.id:
                self.ledger.defer(entry)  # it goes there when a graph first reads it

    def _reads_stored(self, weight: TensorInfo) -> bool:
        """Whether native code reads a weight as it is stored: where the CPU multiplies it."""
        place = self.layers.place_of_weight(weight.name, self.placement_of(weight.name))
        return weight.dtype.name in self.native.formats and self.layers.is_on_cpu(place)

    def read_weights(self, progress: Progress, cancel: Cancel | None) -> None:
        self.weights.load(progress, cancel)

    def compile(self, graph: Graph) -> OnnxPlan:
        return OnnxPlan(self.services, self.sessions, graph, profiled=self.profiles_nodes)

    @classmethod
    def diagnose(cls) -> dict[str, str]:
        return diagnose(ENCODINGS)

    def export(self, graph: Graph, names: Mapping[int, str], folder: Path) -> Path:
        standard = self.option_values["exports"] == "standard"
        return export(self.weights, graph, names, folder, exact=self.is_exact, standard=standard)

    def release(self) -> None:
        self.sessions.close()
        self.weights.close()
        if self.sessions.created:
            return_arena(self.device)


def quantizing_gap(op: Op[Any, Any], specs: Sequence[Spec | None]) -> str:
    """The reason if a write has a quantized target, for which ONNX Runtime has no kernels; else empty."""
    target = None if op.writes is None else specs[list(op.operands).index(op.writes)]
    return f"it cannot quantize to {target.dtype}" if target is not None and target.dtype.is_quantized else ""


def is_one_attention(specs: Sequence[Spec | None]) -> bool:
    """Whether the kernel takes the operands: one batch entry, and none is empty."""
    return all(spec is None or (spec.dim(3) == 1 and 0 not in spec.shape) for spec in specs)
