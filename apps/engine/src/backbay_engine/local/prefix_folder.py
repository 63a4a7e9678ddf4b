"""Beginnings of prompts that outlive a model's cache: on a shelf, where the next process finds them, too."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread, current_thread
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import OptionError

from ..cache.attention.causal import CausalCache
from ..port.options import LoadOptions
from ..runner.slots import Slot
from ..snapshots import Snapshot
from ..snapshots.snapshot_folder import SnapshotFolder, begins_with
from ..steps.tokens import Token
from .snapshot_saver import SlotSnapshotter

log = logging.getLogger(__name__)

WORTH = 64  # tokens that must be new, so that a file is read or written for them
PENDING = 2  # beginnings that wait to be written; more are not kept


@final
class PrefixFolder:
    """Prefixes of prompts in a folder: read by the runner's thread between two steps, written by a thread of its own.

    Errors are logged.
    """

    def __init__(self, options: LoadOptions, snapshots: SlotSnapshotter) -> None:
        cache = snapshots.cache
        anywhere = isinstance(cache, CausalCache) and cache.keep is None
        folder = Path(options.cache_dir).absolute()
        try:
            self._shelf = SnapshotFolder(folder, options.cache_bytes, snapshots.model, anywhere=anywhere)
        except OSError as error:
            raise OptionError(f"cache_dir {folder} cannot be used: {error.strerror}") from error
        self._snapshots, self._cache = snapshots, cache
        self._writer = ThreadPoolExecutor(1, "backbay shelf")
        self._writing: Thread | None = None  # the writer's thread, once it has begun
        self._waiting: list[NDArray[np.int32]] = []  # the tokens of beginnings that are not written yet

    def fetch(self, prompt: Sequence[Token], slot: Slot) -> None:
        """Let a slot hold more of a prompt's beginning than it does, if the shelf has it."""
        tokens = _plain(prompt[:-1])
        if tokens is None:
            return
        try:
            found = self._shelf.find(tokens, len(slot.tokens) + WORTH - 1)
            if found is None:
                return
            snapshot = self._shelf.read(found.path)
            shared = tuple(tokens[: found.length].tolist())
            if snapshot is None or snapshot.rows or snapshot.tokens[: found.length] != shared:
                return
            self._cache.remove(slot.sequence, 0)
            slot.tokens.clear()
            self._snapshots.put(snapshot, slot)
            self._cache.remove(slot.sequence, found.length)
            del slot.tokens[found.length :]
        except BaseException:
            log.exception("a beginning could not be restored; it is computed")
            self._cache.remove(slot.sequence, 0)
            slot.tokens.clear()

    def keep(self, slot: Slot) -> None:
        """Write what a slot holds, unless most of it is on the shelf, or will be soon."""
        tokens = _plain(slot.tokens)
        if tokens is None or len(tokens) < WORTH or slot.exact < len(tokens) or slot.restored:
            return
        if len(self._waiting) >= PENDING:
            return
        try:
            soon = any(begins_with(held, tokens, WORTH) for held in list(self._waiting))
            if soon or self._shelf.has(tokens, WORTH):
                return
            snapshot = self._snapshots.take(slot)
        except BaseException:
            log.exception("a beginning is not kept")
            return
        self._waiting.append(tokens)
        self._writer.submit(self._write, snapshot)

    def close(self) -> None:
        """Wait until all is written, except in the writer's own thread, where the garbage collector may call this."""
        self._writer.shutdown(wait=current_thread() is not self._writing)

    def _write(self, snapshot: Snapshot) -> None:
        self._writing = current_thread()
        try:
            self._shelf.add(snapshot)
        except BaseException:
            log.exception("a beginning is not kept")
        finally:
            self._waiting.pop(0)


def _plain(tokens: Sequence[Token]) -> NDArray[np.int32] | None:
    """Tokens as an array; None if pictures or rows are among them."""
    if not all(isinstance(token, int) for token in tokens):
        return None
    return np.array(tokens, np.int32)
