"""backbay: one tensor contract, many backends, and proof that each of them is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import composites as _composites  # noqa: F401  (declares them)
from . import ops
from .backend import CONTRACT_VERSION, Backend
from .context import Context
from .dtypes import DType
from .dump import dump
from .errors import (
    BackbayError,
    BackendUnavailableError,
    CacheFullError,
    CancelledError,
    ClosedError,
    ContextBusyError,
    DTypeError,
    GraphSizeError,
    ModelFileError,
    NoMemoryError,
    NotComputedError,
    OptionError,
    ShapeError,
    UnknownBackendError,
    UnsupportedOpError,
)
from .graph import Graph, Node
from .kernel_backend import KernelBackend
from .kernels import KernelTable
from .layers import GPULayers, GPULayersList, assign_layers
from .memory import AllocationStatus, BackendMemory, DeviceMemory, Memory
from .op import OPS, Op
from .opening import Choice, choose, open
from .params import (
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
from .placement import Placement
from .plan import Buffer, Plan
from .plugins import BackendEntry, backends
from .recording import Counters
from .spec import Spec
from .tensor import Tensor

if TYPE_CHECKING:
    from .hookspecs import hookimpl

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
    "Counters",
    "DType",
    "DTypeError",
    "Debug",
    "DeviceInfo",
    "DeviceMemory",
    "FlashAttention",
    "GPULayers",
    "GPULayersList",
    "Graph",
    "GraphSizeError",
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
    "hookimpl",
    "open",
    "ops",
]


def __getattr__(name: str) -> Any:
    if name == "hookimpl":  # for plugins; pluggy takes as long to import as the rest of core
        from .hookspecs import hookimpl

        return hookimpl
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
