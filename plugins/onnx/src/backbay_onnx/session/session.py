"""Sessions of ONNX Runtime: their options and threads, how they are made, and the log of their runs."""

from __future__ import annotations

import json
import logging
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np

from backbay import BackbayError
from backbay.internals import Bytes, usable_cores, without_forks

from .cpu_nodes import CPU_NODES, leave_nodes_to_cpu
from .device import Device, doubling, lacks_float16
from .providers import HOST_PROVIDER
from .runtime import load_runtime, translate_errors

RUN, NODE, KERNEL = "model_run", "Node", "_kernel_time"  # names and categories of ONNX Runtime's


@dataclass(frozen=True)
class NodeTime:
    """The time that a session took for one node."""

    name: str
    op: str
    provider: str
    seconds: float


@final
class SessionProfile:
    """What a session writes about its runs, if its options say so. Asking for the times ends it."""

    def __init__(self, options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="backbay-profile-", ignore_cleanup_errors=True)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder.name) / "events")
        self._runs: list[list[NodeTime]] | None = None
        self._counted = 0

    @property
    def is_over(self) -> bool:
        """Whether the times were asked for: ONNX Runtime then logs no more runs of the session."""
        return self._runs is not None

    def count_run(self) -> int:
        self._counted += 1
        return self._counted - 1

    def times(self, session: Any, run: int) -> list[NodeTime]:
        """The times of the nodes of one run, which do not overlap."""
        if self._runs is None:
            with translate_errors("ending a profile"):
                self._runs = list(_runs(json.loads(Path(session.end_profiling()).read_text("utf-8"))))
            self._folder.cleanup()
        return self._runs[run]


def _runs(events: list[dict[str, Any]]) -> Iterator[list[NodeTime]]:
    """The nodes of each run, in order; those of a loop's body are part of the loop."""
    runs = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == RUN)
    nodes = sorted(
        (event for event in events if event["cat"] == NODE and event["name"].endswith(KERNEL)),
        key=lambda event: (event["ts"], -event["dur"]),
    )
    for begin, end in runs:
        yield list(_outer([event for event in nodes if begin <= event["ts"] <= end]))


def _outer(nodes: list[dict[str, Any]]) -> Iterator[NodeTime]:
    end = 0
    for event in nodes:
        if event["ts"] + event["dur"] > end:
            end = event["ts"] + event["dur"]
            name = event["name"].removesuffix(KERNEL)
            args = event["args"]
            yield NodeTime(name, args.get("op_name", ""), args.get("provider", ""), event["dur"] / 1e6)


LOG = logging.getLogger("backbay.onnx")
CAPTURE = "the graph capture feature"  # in ONNX Runtime's errors about sessions whose runs it cannot record


# Microseconds. A thread that sleeps comes 20 to 30 us late to a product of 155 us; one that spins for long disturbs other sessions.
SPIN = 50


class SharedThreadPool:
    """The pool that all sessions of a process share. Its first user sizes it, once and for all.

    ONNX Runtime then refuses sessions with pools of their own, in the whole process. If sessions with their own pools
    came first, sharing is no longer possible: later sessions get pools of their own too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: int | None = None  # 0: sharing is not possible

    def configure(self, options: Any, wanted: int, *, shared: bool, spins: bool) -> None:
        """Make a session use the shared pool if that is wanted, or if the process has one already.

        Threads of a pool of its own sleep between ops, or spin for a short time where `spins`.
        """
        with without_forks(), self._lock:
            if self._threads is None and shared:
                try:
                    load_runtime().set_global_thread_pool_sizes(wanted, 1)
                    self._threads = wanted
                except RuntimeError:
                    self._threads = 0
        if self._threads:
            options.use_per_session_threads = False
            if self._threads != wanted:
                LOG.info(
                    "sessions already share a pool of %d threads; num_threads is %d", self._threads, wanted
                )
        else:
            options.intra_op_num_threads = wanted
            options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spins else "0")
            if spins:
                options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN))
                options.add_session_config_entry("session.force_spinning_stop", "1")  # at the end of a run


POOL = SharedThreadPool()


# MatmulTransposeFusion merges a transpose before a cast wrongly: it reads outside of memory and the process ends.
# Pad_Fusion merges a pad into a pool, which then divides by another count, or refuses it.
DISABLED = ["MatmulTransposeFusion", "Pad_Fusion"]


def session_options(num_threads: int | None, *, shared: bool, native: Path | None = None) -> Any:
    """The options of every session; `native` is a file of custom ops."""
    ort = load_runtime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False  # of its own: it would take twice the memory of a step
    # Before 1.32, ONNX Runtime compares each value with all dead ones, to take the memory of one of the same size. Sizes
    # are unknown here, so it finds none, and a session took time with the square of its nodes: 45 s for 10,000.
    options.enable_mem_reuse = False
    # A written state is bound as input and output. ONNX Runtime does not know it: nodes must run in our order.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    POOL.configure(options, num_threads or usable_cores(), shared=shared, spins=native is not None)
    options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")
    if native is not None:
        with translate_errors("loading native code"):
            options.register_custom_ops_library(str(native))
    return options


SAME_AS_REQUESTED = 1  # how an arena grows: else it doubles
SPLIT = 1 << 16  # bytes that may be left of a block, least, for it to be split
RETURN = (
    "memory.enable_memory_arena_shrinkage",
    "cpu:0",
)  # an option of a run: the arena's free memory goes back after it


@cache
def has_arena() -> bool:
    """Whether sessions on the CPU take their working memory from one arena of the process, which this function makes.

    Blocks that a run frees serve its later nodes. Without, the system would clear each one again: 2 GB for a prompt of 512
    tokens, a third of its time.
    """
    ort = load_runtime()
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    settings = {"max_mem": 0, "arena_extend_strategy": SAME_AS_REQUESTED, "initial_chunk_size_bytes": SPLIT}
    try:
        ort.create_and_register_allocator(
            memory, ort.OrtArenaCfg({**settings, "max_dead_bytes_per_chunk": SPLIT})
        )
    except Exception as error:  # noqa: BLE001  ONNX Runtime's errors share no base class
        LOG.info("sessions use no arena: %s", error)  # other code of this process has registered an allocator
        return False
    return True


def uses_arena(device: Device) -> bool:
    return device.is_host and has_arena()


def use_arena(options: Any) -> None:
    options.enable_cpu_mem_arena = True
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")  # they stay


def return_arena(device: Device) -> None:
    """Hand the arena's free memory back to the system, which only the end of a run does; where none can be made, a later one does."""
    if not uses_arena(device):
        return
    ort = load_runtime()
    with suppress(BackbayError, MemoryError), translate_errors("returning memory"):
        options, run = session_options(1, shared=False), ort.RunOptions()
        use_arena(options)
        run.add_run_config_entry(*RETURN)
        session = ort.InferenceSession(doubling(np.float32), options, providers=[HOST_PROVIDER.name])
        session.run(None, {"x": np.zeros(2, np.float32)}, run)


def create_session(
    model: Any, parts: Sequence[tuple[str, Bytes]], options: Any, device: Device, limit: int | None
) -> Any:
    """A session that reads `parts`, packed weights by file name, where they lie."""
    with translate_errors("creating a session"), device.alone():
        if parts:
            names, data = [name for name, _ in parts], [part for _, part in parts]
            options.add_external_initializers_from_files_in_memory(
                names, data, [part.nbytes for part in data]
            )
        if uses_arena(device):
            use_arena(options)
        options.use_deterministic_compute = not device.is_host  # else CUDA adds up long rows in any order
        if not device.is_host:
            if device.provider.left_to_cpu:  # others are not worth a trial of float16
                leave_nodes_to_cpu(model, device.provider.left_to_cpu, float16=not lacks_float16(device))
            options.add_session_config_entry(*CPU_NODES)
        session = load_runtime().InferenceSession(
            model.SerializeToString(),
            options,
            providers=device.session_providers(limit),
            enable_fallback=0,  # it would try the same again, after a banner on standard output
            disabled_optimizers=DISABLED,
        )
    device.check(session)
    return session
