"""backbay: one tensor contract, many backends, and proof that each of them is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ops
from .backend.backend import Backend
from .backend.kernels.kernel_backend import KernelBackend
from .backend.kernels.kernel_table import KernelTable
from .composites import definitions as _composites  # noqa: F401  (declares them)
from .data.buffer import Buffer
from .discovery.installed import BackendEntry, backends
from .discovery.opening import Choice, choose, open
from .errors import (
    BackbayError,
    BackendUnavailableError,
    CacheFullError,
    CancelledError,
    ClosedError,
    ContextBusyError,
    DeclaredUnsupportedError,
    DTypeError,
    GraphSizeError,
    GuardZoneError,
    ModelFileError,
    NoMemoryError,
    NotComputedError,
    OptionError,
    ShapeError,
    UnknownBackendError,
    UnsupportedOpError,
)
from .graph.graph import Graph, Node
from .graph.plan import Plan
from .memory.report import AllocationStatus, BackendMemory, DeviceMemory, Memory
from .ops.declaration import OPS, Op
from .trace.context import Context
from .trace.dump import dump
from .trace.tensor import Tensor
from .trace.tracing import Counters
from .types.contract_version import CONTRACT_VERSION, ContractVersion
from .types.dtypes import DType
from .types.layers import GPULayers, GPULayersList, assign_layers
from .types.params import (
    BackendParams,
    CacheConfig,
    Debug,
    DeviceInfo,
    FlashAttention,
    Level,
    Option,
    Precision,
    Support,
)
from .types.placement import Placement
from .types.spec import Spec

if TYPE_CHECKING:
    from . import gguf
    from .discovery.hook_specs import hookimpl

__all__ = [
    "CONTRACT_VERSION",
    "OPS",
    "AllocationStatus",
    "BackbayError",
    "Backend",
    "BackendEntry",
    "BackendMemory",
    "BackendParams",
    "BackendUnavailableError",
    "Buffer",
    "CacheConfig",
    "CacheFullError",
    "CancelledError",
    "Choice",
    "ClosedError",
    "Context",
    "ContextBusyError",
    "ContractVersion",
    "Counters",
    "DType",
    "DTypeError",
    "Debug",
    "DeclaredUnsupportedError",
    "DeviceInfo",
    "DeviceMemory",
    "FlashAttention",
    "GPULayers",
    "GPULayersList",
    "Graph",
    "GraphSizeError",
    "GuardZoneError",
    "KernelBackend",
    "KernelTable",
    "Level",
    "Memory",
    "ModelFileError",
    "NoMemoryError",
    "Node",
    "NotComputedError",
    "Op",
    "Option",
    "OptionError",
    "Placement",
    "Plan",
    "Precision",
    "ShapeError",
    "Spec",
    "Support",
    "Tensor",
    "UnknownBackendError",
    "UnsupportedOpError",
    "assign_layers",
    "backends",
    "choose",
    "dump",
    "gguf",
    "hookimpl",
    "open",
    "ops",
]


if not TYPE_CHECKING:  # with __getattr__ in sight, type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name == "hookimpl":  # pluggy takes as long to import as the rest of core
            from .discovery.hook_specs import hookimpl

            return hookimpl
        if name == "gguf":  # graphs without a model never need it
            from importlib import import_module

            return import_module(".gguf", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
