"""ONNX Runtime itself: whether it is there, how many threads it has, and its errors as ours."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Any

from backbay import BackbayError, BackendUnavailableError, CancelledError

CPU = "CPU:0"
DISTRIBUTIONS = {"onnxruntime": "cpu", "onnxruntime-gpu": "cuda"}
LOG = logging.getLogger("backbay.onnx")
NO_MEMORY = ("Failed to allocate memory", "Available memory of", "bad_alloc")


class SharedPool:
    """The pool of threads that all sessions of a process share; its first user sizes it, once and for all.

    ONNX Runtime then refuses sessions with pools of their own, in the whole process. Where such sessions came first,
    it is too late to share, and ours have their own pools too, which do not spin.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: int | None = None  # 0: it cannot be had

    def configure(self, options: Any, wanted: int, *, shared: bool) -> None:
        """Make a session use it, if that is wanted, or cannot be helped any more."""
        with self._lock:
            if self._threads is None and shared:
                self._threads = self._size(wanted)
        if self._threads:
            options.use_per_session_threads = False
            if self._threads != wanted:
                LOG.info(
                    "sessions share a pool of %d threads already; %d were asked for", self._threads, wanted
                )
        else:
            options.intra_op_num_threads = wanted
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")

    @staticmethod
    def _size(wanted: int) -> int:
        try:
            runtime().set_global_thread_pool_sizes(wanted, 1)
        except RuntimeError:
            return 0
        return wanted


POOL = SharedPool()


@cache
def runtime() -> Any:
    """The onnxruntime module; BackendUnavailableError with a remedy if it is missing, doubled or broken."""
    installed = [name for name in DISTRIBUTIONS if is_installed(name)]
    if len(installed) == 2:
        raise BackendUnavailableError(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files; "
            "remedy: pip uninstall onnxruntime onnxruntime-gpu, then pip install backbay-onnx[cpu] or backbay-onnx[cuda]"
        )
    try:
        import onnxruntime
    except ImportError as error:
        why = "is broken" if installed else "is not installed"
        raise BackendUnavailableError(
            f"ONNX Runtime {why} ({error}); remedy: pip install backbay-onnx[cpu], or backbay-onnx[cuda] for CUDA"
        ) from error
    onnxruntime.set_default_logger_severity(4)  # errors come as exceptions; nothing else is for users
    return onnxruntime


def is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """The one place where errors of ONNX Runtime, none of which share a root, become ours."""
    try:
        yield
    except (BackbayError, MemoryError):
        raise
    except Exception as error:
        message = str(error)
        if not _is_foreign(error):
            raise
        if any(sign in message for sign in NO_MEMORY):
            raise MemoryError(f"{doing}: {message}") from error
        if "terminate flag" in message:
            raise CancelledError("cancelled; what was written so far is invalid") from error
        raise BackbayError(f"ONNX Runtime failed while {doing}: {message}") from error


def _is_foreign(error: Exception) -> bool:
    """IOBinding raises plain RuntimeErrors; the other classes live in the extension module."""
    return type(error) is RuntimeError or "onnxruntime" in type(error).__module__


def session_options(num_threads: int | None, *, shared: bool) -> Any:
    """Options that all sessions have in common."""
    ort = runtime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False  # it holds twice what a step needs, and makes none faster
    # A written state is bound as input and output, which ONNX Runtime does not know: nodes must run in our order.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    POOL.configure(options, num_threads or len(os.sched_getaffinity(0)), shared=shared)
    options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")
    return options
