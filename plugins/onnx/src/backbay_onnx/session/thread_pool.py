"""Threads of sessions: a pool for each, or one for all sessions of the process."""

from __future__ import annotations

import logging
import threading
from typing import Any

from backbay.internals import without_forks

from .runtime import runtime

LOG = logging.getLogger("backbay.onnx")


class SharedPool:
    """The pool that all sessions of a process share. Its first user sizes it, once and for all.

    ONNX Runtime then refuses sessions with pools of their own, in the whole process. If sessions with their own pools
    came first, sharing is no longer possible: later sessions get pools of their own too, which do not spin.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: int | None = None  # 0: sharing is not possible

    def configure(self, options: Any, wanted: int, *, shared: bool) -> None:
        """Make a session use the shared pool if that is wanted, or if the process has one already."""
        with without_forks(), self._lock:
            if self._threads is None and shared:
                self._threads = self._size(wanted)
        if self._threads:
            options.use_per_session_threads = False
            if self._threads != wanted:
                LOG.info(
                    "sessions already share a pool of %d threads; num_threads is %d", self._threads, wanted
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
