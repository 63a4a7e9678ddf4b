"""The door for backend authors: a plugin imports from it, `backbay`, `backbay.ops` and `backbay.gguf`, nothing else.

Other modules may move in any release. docs/write-a-backend.md shows how the names are used.
"""

from __future__ import annotations

from .backend.backend import Backend
from .backend.hooks import BackendHooks, Progress
from .backend.kernels.conversions import conversion_gap, decoding_gap, encoding_gap
from .backend.kernels.graph_backend import GraphBackend, GraphPlan
from .backend.kernels.kernel_backend import CPU, GRAPH, KernelBackend, KernelPlan
from .backend.kernels.kernel_table import KernelTable
from .backend.processes.forks import close_after_fork, without_forks
from .backend.processes.helper_processes import kill_helper, reporter, run_helper, start_helper
from .backend.processes.library_trials import (
    TrialCase,
    ended_from_outside,
    processor,
    random_blocks,
    recurrence_cases,
    try_library,
    try_purpose,
)
from .backend.profiling import ProfiledRun
from .composites.parts import composite_kernels
from .data.buffer import Buffer
from .data.cache_folder import CachedValue
from .data.encoding import (
    NUMPY,
    Array,
    Bytes,
    decode,
    dequantize,
    encode,
    gather,
    numpy_view,
    quantize,
    strided,
)
from .data.files import replacing
from .data.host_buffer import GUARD, POISON, HostBuffer, MappedBuffer
from .discovery.hook_specs import hookimpl
from .errors import (
    BackbayError,
    BackendUnavailableError,
    CancelledError,
    DTypeError,
    GuardZoneError,
    NoMemoryError,
    OptionError,
    ShapeError,
    UnsupportedOpError,
)
from .gguf import Config, ModelFile, TensorInfo
from .graph.array_engine import ArrayEngine, GraphFunction
from .graph.array_program import ArrayProgram
from .graph.cancel import Cancel, check_cancel, require_cancel, stop_when_cancelled
from .graph.graph import Graph, Node, NodeKind
from .graph.liveness import assign_slots
from .graph.plan import Plan
from .graph.symbolic_sizes import Guards, Size, Symbols, Term, program, term_of
from .graph.timing import Timing, Timings
from .memory.allocator import keep_blocks, keep_large_blocks, return_freed_memory, return_large_blocks
from .memory.host_memory import host_memory
from .memory.ledger import Entry, Ledger
from .memory.report import AllocationStatus, BackendMemory, DeviceMemory, Memory, human_bytes
from .memory.starvation import naming_limits, raise_if_starved
from .memory.workspace import Workspace
from .ops.declaration import OPS, REQUIRED, Op
from .trace.context import Context
from .trace.tensor import Tensor, trace_op
from .trace.turn import run_if_free
from .types.cached import cached_property
from .types.contract_version import CONTRACT_VERSION, ContractVersion
from .types.cores import usable_cores
from .types.cpu_kind import forced_cpu, refuse_other_cpu
from .types.dtypes import DType
from .types.flag import Flag
from .types.params import (
    COMPOSITE,
    KERNEL,
    MAX_THREADS,
    BackendParams,
    CacheConfig,
    Debug,
    DeviceInfo,
    FlashAttention,
    Level,
    Option,
    Precision,
    Support,
    unsupported,
)
from .types.placement import Placement
from .types.spec import Spec, blocks, contiguous_strides, same_shape, span

__all__ = [
    "COMPOSITE",
    "CONTRACT_VERSION",
    "CPU",
    "GRAPH",
    "GUARD",
    "KERNEL",
    "MAX_THREADS",
    "NUMPY",
    "OPS",
    "POISON",
    "REQUIRED",
    "AllocationStatus",
    "Array",
    "ArrayEngine",
    "ArrayProgram",
    "BackbayError",
    "Backend",
    "BackendHooks",
    "BackendMemory",
    "BackendParams",
    "BackendUnavailableError",
    "Buffer",
    "Bytes",
    "CacheConfig",
    "CachedValue",
    "Cancel",
    "CancelledError",
    "Config",
    "Context",
    "ContractVersion",
    "DType",
    "DTypeError",
    "Debug",
    "DeviceInfo",
    "DeviceMemory",
    "Entry",
    "Flag",
    "FlashAttention",
    "Graph",
    "GraphBackend",
    "GraphFunction",
    "GraphPlan",
    "GuardZoneError",
    "Guards",
    "HostBuffer",
    "KernelBackend",
    "KernelPlan",
    "KernelTable",
    "Ledger",
    "Level",
    "MappedBuffer",
    "Memory",
    "ModelFile",
    "NoMemoryError",
    "Node",
    "NodeKind",
    "Op",
    "Option",
    "OptionError",
    "Placement",
    "Plan",
    "Precision",
    "ProfiledRun",
    "Progress",
    "ShapeError",
    "Size",
    "Spec",
    "Support",
    "Symbols",
    "Tensor",
    "TensorInfo",
    "Term",
    "Timing",
    "Timings",
    "TrialCase",
    "UnsupportedOpError",
    "Workspace",
    "assign_slots",
    "blocks",
    "cached_property",
    "check_cancel",
    "close_after_fork",
    "composite_kernels",
    "contiguous_strides",
    "conversion_gap",
    "decode",
    "decoding_gap",
    "dequantize",
    "encode",
    "encoding_gap",
    "ended_from_outside",
    "forced_cpu",
    "gather",
    "hookimpl",
    "host_memory",
    "human_bytes",
    "keep_blocks",
    "keep_large_blocks",
    "kill_helper",
    "naming_limits",
    "numpy_view",
    "processor",
    "program",
    "quantize",
    "raise_if_starved",
    "random_blocks",
    "recurrence_cases",
    "refuse_other_cpu",
    "replacing",
    "reporter",
    "require_cancel",
    "return_freed_memory",
    "return_large_blocks",
    "run_helper",
    "run_if_free",
    "same_shape",
    "span",
    "start_helper",
    "stop_when_cancelled",
    "strided",
    "term_of",
    "trace_op",
    "try_library",
    "try_purpose",
    "unsupported",
    "usable_cores",
    "without_forks",
]
