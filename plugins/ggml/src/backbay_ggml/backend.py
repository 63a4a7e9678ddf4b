"""The backend: graphs lowered to ggml's, run on the CPU or over several devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
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
    Node,
    NoMemoryError,
    Op,
    Option,
    Placement,
    Plan,
    Precision,
    Spec,
    Support,
)
from backbay.gguf import ModelFile, TensorInfo
from backbay.plugin import COMPOSITE, Cancel, Entry, Progress, unsupported

from . import doctor
from .devices import cache_support as trials
from .devices.device import CPU, Device, find_devices
from .devices.device_choice import Steer
from .devices.layer_assignment import Assignment, for_model, without_model
from .devices.rpc_servers import parse_endpoints
from .library.abi import Ptr, ffi
from .library.library import load_library
from .ops import rules
from .ops.builder import Builder
from .ops.kernel_table import kernel
from .ops.products import has_lowest_code
from .plans.arena import Arena
from .plans.cpu_plan import GgmlPlan
from .plans.multi_device_plan import ScheduledPlan
from .plans.scheduler import Stage
from .tensors.buffers import DeviceLeaf, LeafBuffer, PlacedWeight, WeightBuffer
from .weights.arrangements import Arrangement
from .weights.cpu_weights import AUTO, COPIED, MAPPED, WeightStore
from .weights.device_weights import PlacedStore

EMBEDDINGS = "token_embd.weight"
CACHE_PADDING = 32  # the block of the types that a cache may be stored as


def _usable_cores() -> int:
    """Those that this process may run on, where the system tells."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


def parse_weights(value: Any) -> str:
    if value not in (AUTO, COPIED, MAPPED):
        raise ValueError(f"not one of {AUTO}, {COPIED}, {MAPPED}")
    return str(value)


@final
class Ggml(Backend):
    """ggml on the CPU and on the other devices that it reports.

    Graphs are built and placed once. The intermediate results of all contexts share memory, an arena on the CPU, or a
    stage over several devices; leaves, outputs and constants have memory of their own. Layers lie on the devices that
    `gpu_layers` gives them. Weights that the CPU multiplies faster in another arrangement are copied into it when they
    are loaded; its others stay where the file is mapped.
    """

    contract_version = 1
    kernels = kernel
    priority = 0
    options: ClassVar[Mapping[str, Option]] = {
        "weights": Option(AUTO, parse_weights, "auto, copied or mapped: where the CPU's weights lie"),
        "rpc": Option(
            (), parse_endpoints, "HOST:PORT of ggml RPC servers, with commas, whose devices to use"
        ),
    }

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        self.library = load_library()
        self.threads = params.num_threads or _usable_cores()
        self.abort_flag: Any = ffi.new("char[2]")
        # strlen of this flag is true once its first byte is set: a callback that needs no Python.
        libc = ffi.dlopen(None)
        self.abort_callback: Any = ffi.cast("void *", ffi.addressof(libc, "strlen"))
        self.graph_entry = Entry(CPU, "graph")
        self._signs: dict[str, bool] = {}
        self.store: WeightStore | None = None
        self.placed: PlacedStore | None = None
        super().__init__(model, params)
        self.arena = Arena(self.library, self.ledger, self.graph_entry, holds=params.alloc_memory)

    @classmethod
    def diagnose(cls) -> dict[str, str]:
        return doctor.diagnose()

    # -- devices -----------------------------------------------------------------------------------------

    @cached_property
    def all_devices(self) -> list[Device]:
        return find_devices(self.library, self.option_values["rpc"])

    @property
    def cpu(self) -> Device:
        return self.all_devices[0]

    def devices(self) -> list[DeviceInfo]:
        return [device.info() for device in self.all_devices]

    def device_of(self, placement: Placement) -> str:
        return self.placed_on(placement).id

    def placed_on(self, placement: Placement) -> Device:
        """The device of a leaf, a weight or a node that was told where to be."""
        return self.assignment.device(placement)

    @cached_property
    def assignment(self) -> Assignment:
        if self.model is None:
            return without_model(self.all_devices, self.params.gpu_layers)
        sizes = [0] * self.ledger.layers
        for info in self.model.tensors.values():
            layer = self.placement_of(info.name).layer
            if layer is not None:
                sizes[layer] += info.nbytes
        if self._is_tied:
            sizes[-1] += self.model.tensors[EMBEDDINGS].nbytes
        return for_model(self.all_devices, self.params.gpu_layers, sizes, self.params.max_memory)

    @cached_property
    def stage(self) -> Stage:
        """What runs graphs over several devices."""
        devices = [*self.assignment.others, self.cpu]
        return Stage(self.library, self.ledger, devices, self._prepare_cpu, holds=self.params.alloc_memory)

    @property
    def is_spread(self) -> bool:
        """Whether anything lies on another device than the CPU."""
        return bool(self.assignment.others)

    def _prepare_cpu(self, backend: Ptr) -> None:
        self.library.cpu_procedure("ggml_backend_set_n_threads", "void (*)(ggml_backend_t, int)")(
            backend, self.threads
        )
        signature = "void (*)(ggml_backend_t, void *, void *)"
        self.library.cpu_procedure("ggml_backend_set_abort_callback", signature)(
            backend, self.abort_callback, self.abort_flag
        )

    # -- graphs ------------------------------------------------------------------------------------------

    def compile(self, graph: Graph) -> Plan:
        try:
            return ScheduledPlan(self, graph) if self.is_spread else GgmlPlan(self, graph)
        except NoMemoryError:
            raise
        except MemoryError as error:
            raise self.ledger.failure(self.graph_entry, 0, str(error) or "the system refused") from error

    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        device = self.placed_on(placement)
        kind = LeafBuffer if device.is_cpu else DeviceLeaf
        return kind(self.library, device, spec, self.params.debug)

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        return Precision(*rules.precision(self.library, op, specs, flash=self.flash))

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        support = super().supports(op, specs)
        if op in self.kernels:
            why = rules.reason(self.library, op, specs)
            if why:
                return unsupported(why)
            if op in rules.COMPOSED_WHEN_EMPTY and any(spec is not None and spec.size == 0 for spec in specs):
                return COMPOSITE
        return support

    # -- caches ------------------------------------------------------------------------------------------

    @cached_property
    def flash(self) -> bool:
        """Whether flash attention is used; where nobody asked for it, only if all devices with layers have it."""
        choice = self.params.flash_attention
        if choice is not FlashAttention.AUTO:
            return choice is FlashAttention.ON
        head = self._head()
        return all(trials.attends(self.library, device, head) for device in self.assignment.others)

    def cache_config(self) -> CacheConfig:
        stored = (
            (DType.F16, DType.F32, DType.BF16, DType.Q8_0, DType.Q4_0)
            if self.flash
            else (DType.F16, DType.F32)
        )
        held = tuple(
            dtype
            for dtype in stored
            if all(
                trials.stores(self.library, device, dtype, self.flash) for device in self.assignment.others
            )
        )
        return CacheConfig(
            cache_padding=CACHE_PADDING, permuted_v=not self.flash, mask_dtype=DType.F16, dtypes=held
        )

    def _head(self) -> int:
        """The size of the model's heads, or a usual one."""
        heads = self.config.int("attention.head_count", 0) if self.model is not None else 0
        usual = self.config.int("embedding_length", 0) // heads if heads else 128
        return self.config.int("attention.key_length", usual)

    def builder(self, steer: Steer | None = None) -> Builder:
        """What makes the tensors of one graph, for several devices if something steers them."""
        return Builder(
            self.library,
            flash=self.flash,
            steer=steer,
            has_signs=self.has_signs,
            arrangement=self.arrangement,
        )

    # -- weights -----------------------------------------------------------------------------------------

    def has_signs(self, weight: Node) -> bool:
        """Whether each code of a q8_0 weight has one of the other sign. Quantizers make no -128, but others may.

        It is read once for each weight of a file; leaves may get other data at any time.
        """
        leaf = weight.storage.leaf
        if self.model is None or leaf is None or weight.storage.kind != "parameter":
            return False
        if not self.params.alloc_memory:
            return True  # as it will be for most, and their graphs hardly differ
        if leaf.name not in self._signs:
            self._signs[leaf.name] = not has_lowest_code(self.model.data(leaf.name))
        return self._signs[leaf.name]

    def arrangement(self, weight: Node) -> Arrangement | None:
        """How the CPU's copy of a weight lies in memory, if it is arranged in another way."""
        leaf = weight.storage.leaf
        if self.model is None or self.store is None or leaf is None or leaf.name not in self.model.tensors:
            return None
        return self.store.arranged(self.model.tensors[leaf.name])

    @property
    def _is_tied(self) -> bool:
        """Whether the embeddings serve as the output's weights too."""
        tensors = self.model.tensors if self.model is not None else {}
        return EMBEDDINGS in tensors and "output.weight" not in tensors

    def product_home(self, name: str) -> Device | None:
        """The device with a copy of a weight that lies on the host: of tied embeddings, for the output."""
        output = self.placed_on(Placement(layer=self.ledger.layers - 1))
        return output if name == EMBEDDINGS and self._is_tied and not output.is_cpu else None

    def weight(self, info: TensorInfo) -> Buffer:
        assert self.model is not None
        assert self.store is not None
        assert self.placed is not None
        data, found = self.model.data(info.name), self.placed.find(info.name)
        if found is not None and self.product_home(info.name) is None:
            return PlacedWeight(found[1], data, found[0])
        copy = self.store.tensor(info)
        product = found or (None if copy is None else (copy, self.cpu))
        return WeightBuffer(self.library, self.cpu, data, Spec(info.dtype, info.shape), product)

    def measured_copy(self, name: str) -> Ptr | None:
        """What the CPU's copy of a weight would be for a graph, in a dry run; the name of a leaf is empty."""
        if self.model is None or self.store is None or name not in self.model.tensors:
            return None
        return self.store.measured(self.model.tensors[name])

    def book_weights(self) -> None:
        """Copies are allocated here, by layer and device; what stays mapped is only booked."""
        if self.model is None:
            return
        self.placed = PlacedStore(self.library, self.model)
        served = {name for name in self.model.tensors if self.product_home(name) is not None}
        self.store = WeightStore(self.library, self.model, self.option_values["weights"], served)
        by_entry: dict[Entry, list[TensorInfo]] = {}
        for info in self.model.tensors.values():
            by_entry.setdefault(self.weight_entry(info.name), []).append(info)
        for name in served:
            output = Placement(layer=self.ledger.layers - 1)
            entry = Entry(self.device_of(output), "weights", self.ledger.layers - 1)
            by_entry.setdefault(entry, []).append(self.model.tensors[name])
        known = {device.id: device for device in self.all_devices}
        try:
            for entry, infos in by_entry.items():
                self._book(entry, infos, known[entry.device])
        except BaseException:
            self.release()
            raise

    def _book(self, entry: Entry, infos: list[TensorInfo], device: Device) -> None:
        assert self.store is not None
        assert self.placed is not None
        store, placed, holds = self.store, self.placed, self.params.alloc_memory
        if not device.is_cpu:
            nbytes = placed.size(device, infos)
            self.ledger.take(entry, nbytes, lambda: placed.allocate(device, infos) if holds else None)
            return
        copied = [info for info in infos if store.copies(info)]
        mapped = sum(info.nbytes for info in infos if not store.copies(info))
        self.ledger.take(entry, mapped, lambda: None)
        self.ledger.take(entry, store.size(copied), lambda: store.allocate(copied) if holds else None)

    def read_weights(self, progress: Progress, cancel: Cancel | None) -> None:
        if self.store is None or self.placed is None:
            return
        total, done = (self.store.nbytes + self.placed.nbytes) or 1, 0
        for part in (self.store, self.placed):
            part.fill(_share(progress, done / total, part.nbytes / total), cancel)
            done += part.nbytes

    def release(self) -> None:
        if self.store is not None:
            self.store.close()
        if self.placed is not None:
            self.placed.close()
        if "stage" in vars(self):
            self.stage.close()
        for device in self.all_devices:
            device.close()


def _share(progress: Progress, start: float, part: float) -> Callable[[float], None]:
    """The progress of a part, as that of the whole."""
    return lambda done: progress(start + done * part)
