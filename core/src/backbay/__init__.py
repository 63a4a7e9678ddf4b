"""backbay: one tensor contract, many backends, and proof that each of them is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ops as ops
from .backend.backend import Backend as Backend
from .backend.kernels.kernel_backend import KernelBackend as KernelBackend
from .backend.kernels.kernel_table import KernelTable as KernelTable
from .composites import definitions as _composites  # noqa: F401  (declares them)
from .data.buffers import Buffer as Buffer
from .discovery.installed import BackendEntry as BackendEntry
from .discovery.installed import backends as backends
from .discovery.opening import Choice as Choice
from .discovery.opening import choose as choose
from .discovery.opening import open as open
from .errors import BackbayError as BackbayError
from .errors import BackendUnavailableError as BackendUnavailableError
from .errors import CacheFullError as CacheFullError
from .errors import CancelledError as CancelledError
from .errors import ClosedError as ClosedError
from .errors import ContextBusyError as ContextBusyError
from .errors import DeclaredUnsupportedError as DeclaredUnsupportedError
from .errors import DTypeError as DTypeError
from .errors import GraphSizeError as GraphSizeError
from .errors import GuardZoneError as GuardZoneError
from .errors import ModelFileError as ModelFileError
from .errors import NoMemoryError as NoMemoryError
from .errors import NotComputedError as NotComputedError
from .errors import OptionError as OptionError
from .errors import RefusalError as RefusalError
from .errors import ShapeError as ShapeError
from .errors import UnknownBackendError as UnknownBackendError
from .errors import UnsupportedOpError as UnsupportedOpError
from .graph.graph import Graph as Graph
from .graph.graph import Node as Node
from .graph.graph import Plan as Plan
from .memory.report import AllocationStatus as AllocationStatus
from .memory.report import BackendMemory as BackendMemory
from .memory.report import DeviceMemory as DeviceMemory
from .memory.report import Memory as Memory
from .ops.op_declaration import OPS as OPS
from .ops.op_declaration import Op as Op
from .trace.context import Context as Context
from .trace.tensor import Tensor as Tensor
from .trace.tensor import dump as dump
from .trace.traced_graph import Counters as Counters
from .types.backend_declarations import DeviceInfo as DeviceInfo
from .types.backend_declarations import Level as Level
from .types.backend_declarations import Precision as Precision
from .types.backend_declarations import Support as Support
from .types.cache_config import CacheConfig as CacheConfig
from .types.contract_version import CONTRACT_VERSION as CONTRACT_VERSION
from .types.contract_version import ContractVersion as ContractVersion
from .types.dtype import DType as DType
from .types.gpu_layers import GPULayers as GPULayers
from .types.gpu_layers import GPULayersList as GPULayersList
from .types.gpu_layers import Placement as Placement
from .types.gpu_layers import assign_layers as assign_layers
from .types.params import BackendParams as BackendParams
from .types.params import Debug as Debug
from .types.params import FlashAttention as FlashAttention
from .types.params import Option as Option
from .types.spec import Spec as Spec

if TYPE_CHECKING:
    from . import gguf as gguf
    from .discovery.hook_specs import hookimpl as hookimpl


if not TYPE_CHECKING:  # with __getattr__ in sight, type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name == "hookimpl":  # pluggy takes as long to import as the rest of core
            from .discovery.hook_specs import hookimpl

            return hookimpl
        if name == "gguf":  # graphs without a model never need it
            from importlib import import_module

            return import_module(".gguf", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
