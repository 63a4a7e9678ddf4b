"""The backend: graphs lowered to ggml's, run on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
    Placement,
    Precision,
    Support,
)
from backbay.gguf import ModelFile, TensorInfo
from backbay.memory import Entry
from backbay.params import COMPOSITE, Option, unsupported
from backbay.plan import Cancel, Progress
from backbay.spec import Spec

from . import doctor, rules
from .abi import ffi
from .arena import Arena
from .buffers import LeafBuffer, WeightBuffer
from .library import load_library, text
from .plan import GgmlPlan
from .store import AUTO, COPIED, MAPPED, WeightStore
from .table import kernel

CPU = "CPU:0"
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
    """ggml on the CPU.

    Graphs are built and placed once. The intermediate results of all contexts share one arena; leaves, outputs and
    constants have memory of their own. Weights that the CPU multiplies faster in another arrangement are copied into
    it when they are loaded; the others stay where the file is mapped.
    """

    contract_version = 1
    kernels = kernel
    options: ClassVar[Mapping[str, Option]] = {
        "weights": Option(AUTO, parse_weights, "auto, copied or mapped: where the CPU's weights lie"),
    }

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        self.library = load_library()
        self.threads = params.num_threads or _usable_cores()
        self.flash = params.flash_attention is not FlashAttention.OFF
        self.abort_flag: Any = ffi.new("char[2]")
        # strlen of this flag is true once its first byte is set: a callback that needs no Python.
        libc = ffi.dlopen(None)
        self.abort_callback: Any = ffi.cast("void *", ffi.addressof(libc, "strlen"))
        self.graph_entry = Entry(CPU, "graph")
        self.store: WeightStore | None = None
        super().__init__(model, params)
        self.arena = Arena(self.library, self.ledger, self.graph_entry, holds=params.alloc_memory)

    @classmethod
    def diagnose(cls) -> dict[str, str]:
        return doctor.diagnose()

    def devices(self) -> list[DeviceInfo]:
        lib, device = self.library.lib, self.library.cpu
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        lib.ggml_backend_dev_memory(device, free, total)
        name = text(lib.ggml_backend_dev_description(device))
        return [DeviceInfo(CPU, name, total_memory=total[0], free_memory=free[0])]

    def device_of(self, placement: Placement) -> str:
        return CPU

    def compile(self, graph: Graph) -> GgmlPlan:
        try:
            return GgmlPlan(self, graph)
        except NoMemoryError:
            raise
        except MemoryError as error:
            raise self._no_memory(error) from error

    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        return LeafBuffer(self.library, spec, self.params.debug)

    def weight(self, info: TensorInfo) -> Buffer:
        assert self.model is not None
        assert self.store is not None
        copy = self.store.tensor(info)
        return WeightBuffer(self.library, self.model.data(info.name), Spec(info.dtype, info.shape), copy)

    def book_weights(self) -> None:
        """Copies are allocated here, by layer; what stays mapped is only booked."""
        if self.model is None:
            return
        self.store = WeightStore(self.library, self.model, self.option_values["weights"])
        by_entry: dict[Entry, list[TensorInfo]] = {}
        for info in self.model.tensors.values():
            by_entry.setdefault(self.weight_entry(info.name), []).append(info)
        try:
            for entry, infos in by_entry.items():
                self._book(entry, infos, self.store)
        except BaseException:
            self.store.close()
            raise

    def _book(self, entry: Entry, infos: list[TensorInfo], store: WeightStore) -> None:
        copied = [info for info in infos if store.copies(info)]
        mapped = sum(info.nbytes for info in infos if not store.copies(info))
        self.ledger.take(entry, mapped, lambda: None)
        holds = self.params.alloc_memory
        self.ledger.take(entry, store.size(copied), lambda: store.allocate(copied) if holds else None)

    def read_weights(self, progress: Progress, cancel: Cancel | None) -> None:
        if self.store is not None:
            self.store.fill(progress, cancel)

    def release(self) -> None:
        if self.store is not None:
            self.store.close()

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

    def cache_config(self) -> CacheConfig:
        stored = (
            (DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0)
            if self.flash
            else (DType.F32, DType.F16)
        )
        return CacheConfig(
            cache_padding=CACHE_PADDING, permuted_v=not self.flash, mask_dtype=DType.F16, dtypes=stored
        )

    def _no_memory(self, error: MemoryError) -> NoMemoryError:
        def fail() -> None:
            raise error

        try:
            self.ledger.take(self.graph_entry, 0, fail)
        except NoMemoryError as made:
            return made
        raise AssertionError("the ledger let a failure pass")
