"""The door for backend authors: a plugin imports from it, `backbay`, `backbay.ops`, `backbay.gguf` and `backbay.kernels`, nothing else.

Other modules may move in any release. docs/write-a-backend.md shows how the names are used.
"""

from __future__ import annotations

from .backend.backend import Backend as Backend
from .backend.hooks import BackendHooks as BackendHooks
from .backend.hooks import Progress as Progress
from .backend.kernels.graph_backend import GraphBackend as GraphBackend
from .backend.kernels.kernel_backend import CPU as CPU
from .backend.kernels.kernel_backend import GRAPH as GRAPH
from .backend.kernels.kernel_backend import KernelBackend as KernelBackend
from .backend.kernels.kernel_table import KernelTable as KernelTable
from .backend.kernels.kernel_table import conversion_gap as conversion_gap
from .backend.kernels.kernel_table import encoding_gap as encoding_gap
from .data.buffers import Buffer as Buffer
from .data.buffers import HostBuffer as HostBuffer
from .data.buffers import MappedBuffer as MappedBuffer
from .data.cache_folder import CachedValue as CachedValue
from .data.encoding import NUMPY as NUMPY
from .data.encoding import decode as decode
from .data.encoding import encode as encode
from .data.encoding import gather as gather
from .data.encoding import strided as strided
from .discovery.hook_specs import hookimpl as hookimpl
from .graph.array_engine import ArrayEngine as ArrayEngine
from .graph.array_engine import ArrayProgram as ArrayProgram
from .graph.array_engine import GraphFunction as GraphFunction
from .graph.graph import Cancel as Cancel
from .graph.graph import Graph as Graph
from .graph.graph import Node as Node
from .graph.graph import Plan as Plan
from .graph.graph import Timing as Timing
from .graph.graph import assign_slots as assign_slots
from .graph.graph import check_cancel as check_cancel
from .graph.graph import stop_when_cancelled as stop_when_cancelled
from .graph.symbolic_sizes import Guards as Guards
from .graph.symbolic_sizes import program as program
from .memory.host_memory import host_memory as host_memory
from .memory.ledger import Entry as Entry
from .memory.workspace_booking import Workspace as Workspace
from .ops.op_declaration import Op as Op
from .types.backend_declarations import DeviceInfo as DeviceInfo
from .types.backend_declarations import Precision as Precision
from .types.backend_declarations import Support as Support
from .types.backend_declarations import unsupported as unsupported
from .types.dtype import DType as DType
from .types.gpu_layers import Placement as Placement
from .types.params import Option as Option
from .types.spec import Spec as Spec


def __getattr__(name: str) -> object:
    """Names that plugins of contract 1.1 import from here; none of Python's own, such as `__all__`."""
    from importlib import import_module

    for door in () if name.startswith("_") else ("backbay.internals", "backbay", "backbay.gguf"):
        if hasattr(module := import_module(door), name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
