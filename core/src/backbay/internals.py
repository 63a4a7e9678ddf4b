"""The door for backbay's own packages: helper processes, forks, memory of libraries, symbolic sizes.

Nothing of it is promised to others.
"""

from __future__ import annotations

from .backend.helper_processes import close_after_fork as close_after_fork
from .backend.helper_processes import ended_from_outside as ended_from_outside
from .backend.helper_processes import exit_name as exit_name
from .backend.helper_processes import kill_helper as kill_helper
from .backend.helper_processes import reporter as reporter
from .backend.helper_processes import run_helper as run_helper
from .backend.helper_processes import start_helper as start_helper
from .backend.helper_processes import without_forks as without_forks
from .backend.kernels.graph_backend import GraphPlan as GraphPlan
from .backend.kernels.kernel_backend import KernelPlan as KernelPlan
from .backend.kernels.kernel_table import decoding_gap as decoding_gap
from .backend.profiling import ProfiledRun as ProfiledRun
from .composites.graph_builder import call_text as call_text
from .composites.graph_builder import composite_kernels as composite_kernels
from .data.buffers import GUARD as GUARD
from .data.buffers import POISON as POISON
from .data.cache_folder import cache_folder as cache_folder
from .data.cache_folder import replacing as replacing
from .data.encoding import Array as Array
from .data.encoding import Bytes as Bytes
from .data.encoding import dequantize as dequantize
from .data.encoding import numpy_view as numpy_view
from .data.encoding import quantize as quantize
from .discovery.installed import load_declared as load_declared
from .graph.graph import NodeKind as NodeKind
from .graph.graph import Timings as Timings
from .graph.graph import require_cancel as require_cancel
from .graph.symbolic_sizes import Size as Size
from .graph.symbolic_sizes import Symbols as Symbols
from .graph.symbolic_sizes import Term as Term
from .graph.symbolic_sizes import term_of as term_of
from .memory.host_memory import keep_blocks as keep_blocks
from .memory.host_memory import keep_large_blocks as keep_large_blocks
from .memory.host_memory import naming_limits as naming_limits
from .memory.host_memory import raise_if_starved as raise_if_starved
from .memory.host_memory import return_freed_memory as return_freed_memory
from .memory.host_memory import return_large_blocks as return_large_blocks
from .memory.ledger import Ledger as Ledger
from .memory.report import human_bytes as human_bytes
from .ops.op_declaration import REQUIRED as REQUIRED
from .regular_files import open_regular as open_regular
from .regular_files import read_regular as read_regular
from .trace.recording import run_if_free as run_if_free
from .trace.tensor import trace_op as trace_op
from .types.backend_declarations import COMPOSITE as COMPOSITE
from .types.backend_declarations import KERNEL as KERNEL
from .types.cpu import forced_cpu as forced_cpu
from .types.cpu import processor as processor
from .types.cpu import usable_cores as usable_cores
from .types.fork_safety import InterruptSafeEvent as InterruptSafeEvent
from .types.fork_safety import cached_property as cached_property
from .types.params import MAX_THREADS as MAX_THREADS
from .types.params import choice_of as choice_of
from .types.spec import blocks as blocks
from .types.spec import contiguous_strides as contiguous_strides
from .types.spec import same_shape as same_shape
from .types.spec import span as span
