"""The backend: what it supports, where memory is, and how a graph becomes a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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
from backbay.gguf import ModelFile, TensorInfo
from backbay.hostbuffer import MappedBuffer
from backbay.params import COMPOSITE, unsupported
from backbay.plan import Cancel, Progress

from . import families
from .compiled import Sessions
from .packing import LAYOUTS
from .plan import CPU, LeafBuffer, OnnxPlan
from .runtime import runtime
from .spill import give_back
from .weights import WeightStore, is_multiplied

PRODUCTS = (ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)


def one_of(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"it must be {' or '.join(choices)}")
        return str(value)

    return parse


class OnnxBackend(Backend):
    """ONNX Runtime on the CPU: one session per structure of graphs, sizes fed as data."""

    contract_version = 1
    kernels = families.TABLE
    options = {
        "precision": Option(
            "fast",
            one_of("fast", "exact"),
            "fast: products with quantized weights round activations to blocks of int8, as ggml does; "
            "exact: activations stay float32",
        ),
        "threads": Option(
            "shared",
            one_of("shared", "own"),
            "shared: all sessions of the process use one pool of threads, sized by the first backend; "
            "own: sessions have pools of their own, as other users of ONNX Runtime in the process may need",
        ),
    }

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        runtime()
        self.weights, self.sessions = WeightStore(self), Sessions(self)
        super().__init__(model, params)

    @property
    def is_exact(self) -> bool:
        return bool(self.option_values["precision"] == "exact")

    @property
    def shares_threads(self) -> bool:
        return bool(self.option_values["threads"] == "shared")

    def devices(self) -> list[DeviceInfo]:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
        return [DeviceInfo(CPU, "ONNX Runtime CPU", total_memory=total, free_memory=free)]

    def cache_config(self) -> CacheConfig:
        return CacheConfig(dtypes=(DType.F32, DType.F16, DType.BF16))

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        if op.writes is not None:
            target = specs[list(op.operands).index(op.writes)]
            if target is not None and target.dtype.is_quantized:
                return unsupported(f"it cannot quantize to {target.dtype}")
        if op is ops.scaled_dot_product_attention and not _is_one_attention(specs):
            return COMPOSITE
        return super().supports(op, specs)

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        packed = op in PRODUCTS and specs[0] is not None and specs[0].dtype in LAYOUTS
        return Precision(DType.Q8_0 if packed and not self.is_exact else DType.F32, DType.F32)

    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        return LeafBuffer(spec.nbytes, self.params.debug)

    def weight(self, info: TensorInfo) -> Buffer:
        assert self.model is not None
        return MappedBuffer(self.model.data(info.name))

    def book_weights(self) -> None:
        for info in self.model.tensors.values() if self.model is not None else ():
            if is_multiplied(info):
                self.weights.book_packed(info)
            else:
                self.ledger.take(self.weight_entry(info.name), info.nbytes, lambda: None)

    def read_weights(self, progress: Progress, cancel: Cancel | None) -> None:
        self.weights.load(progress, cancel)

    def compile(self, graph: Graph) -> OnnxPlan:
        return OnnxPlan(self, graph, self.sessions.find(graph))

    def release(self) -> None:
        self.sessions.close()
        self.weights.close()
        give_back()


def _is_one_attention(specs: Sequence[Spec | None]) -> bool:
    """Whether the kernel takes it: one batch entry, and nothing is empty."""
    return all(spec is None or (spec.dim(3) == 1 and 0 not in spec.shape) for spec in specs)
