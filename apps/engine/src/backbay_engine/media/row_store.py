"""The store: the rows of pictures, each computed once, kept in host memory under a budget."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, RLock, Thread, current_thread
from typing import NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay import CancelledError, ClosedError
from backbay.internals import InterruptSafeEvent
from backbay.plugin import Cancel

from ..encoders.contract import Prepared
from ..errors import LogitsError, as_exception

log = logging.getLogger(__name__)

Rows: TypeAlias = NDArray[np.float32]
Embed: TypeAlias = Callable[[Sequence[Prepared], Cancel], Sequence[Rows]]
Done: TypeAlias = Callable[["RowsLease", BaseException | None], None]
TOGETHER = 4  # pictures of one shape that are encoded at once


class StoreCounters(NamedTuple):
    """What a store did, and what it holds."""

    asked: int  # pictures in requests
    computed: int  # pictures that were encoded
    rows: int  # rows that were handed out to steps
    bytes: int  # of the rows that are held


@dataclass(eq=False)
class _Entry:
    """The rows of a picture, or the place that is kept for them. `picture` is let go once the rows are there."""

    content: bytes
    nbytes: int
    picture: Prepared | None
    rows: Rows | None = None
    alone: bool = False  # encoded without others, after an encoding of several failed
    holders: set[RowsLease] = field(default_factory=set)


@final
class RowsLease:
    """A request's pictures in the store: they stay until the lease is released."""

    def __init__(self, store: RowStore, pictures: Sequence[Prepared], done: Done) -> None:
        self.pictures = {picture.content: picture for picture in pictures}
        self.done = done
        self.entries: dict[bytes, _Entry] = {}
        self._store, self._released = store, False

    def of(self, content: bytes) -> Rows:
        """The rows of a picture, (rows, width)."""
        rows = self.entries[content].rows
        assert rows is not None  # `done` was called
        return rows

    def hand_out(self, content: bytes, count: int) -> None:
        """Count rows of a picture that a step takes."""
        self._store.count_rows(count)

    def release(self) -> None:
        """Let the pictures go; those that are not encoded yet, and nobody else wants, are given up."""
        if not self._released:
            self._released = True
            self._store.release(self)


@final
class RowStore:
    """Rows by content. A thread of its own encodes what is not there; a picture that several ask for is encoded once.

    budget  most bytes: the least recently used pictures go first, those in use stay. Requests wait until their
            pictures fit; a request whose pictures alone are more is served when no other is.
    width   features of a row
    embed   encodes pictures
    """

    def __init__(self, embed: Embed, budget: int, width: int) -> None:
        self.budget = budget
        self._embed, self._width = embed, width
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # the least recently used first
        self._waiting: deque[RowsLease] = deque()  # for room
        self._todo: deque[_Entry] = deque()
        self._encoded: list[_Entry] = []  # just now
        self._cancel = InterruptSafeEvent()
        self._asked = self._computed = self._rows = self._bytes = 0
        self._lock = RLock()  # Ctrl-C may leave a Condition locked that is entered itself
        self._changed = Condition(self._lock)
        self._thread: Thread | None = None
        self._closing = False

    @property
    def counters(self) -> StoreCounters:
        with self._lock:
            return StoreCounters(self._asked, self._computed, self._rows, self._bytes)

    def lease(self, pictures: Sequence[Prepared], done: Done) -> RowsLease:
        """Ask for the rows of pictures; `done` gets the lease when all are there, perhaps at once, or the error."""
        lease = RowsLease(self, pictures, done)
        with self._lock:
            if self._closing:
                raise ClosedError("the model is closed")
            self._asked += len(pictures)
            self._waiting.append(lease)
            ready = self._admit()
        _tell(ready, None)
        return lease

    def clear(self) -> None:
        """Forget all pictures that are not in use."""
        with self._lock:
            for entry in [entry for entry in self._entries.values() if not entry.holders]:
                self._drop(entry)

    def count_rows(self, count: int) -> None:
        with self._lock:
            self._rows += count

    def release(self, lease: RowsLease) -> None:
        """Take back a lease: `RowsLease.release` calls it, once."""
        with self._lock:
            if lease in self._waiting:
                self._waiting.remove(lease)
            self._let_go(lease)
            if self._encoded and not any(entry.holders for entry in self._encoded):
                self._cancel.set()
            self._make_room(0)
            ready = self._admit()
        _tell(ready, None)

    def close(self) -> None:
        """Give up what is being encoded, and free all rows; leases that wait get ClosedError."""
        with self._lock:
            self._closing = True
            self._cancel.set()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not current_thread():
            thread.join()
        with self._lock:
            holders = (entry.holders for entry in self._entries.values() if entry.rows is None)
            lost = [*self._waiting, *set().union(*holders)]
            self._waiting.clear()
            self._todo.clear()
            self._entries.clear()
            self._bytes = 0
        _tell(lost, ClosedError("the model was closed before the request was done"))

    def after_fork(self) -> None:
        """In a forked child, whose other threads are lost."""
        self._lock = RLock()
        self._changed, self._thread, self._closing = Condition(self._lock), None, True

    # -- with the lock held ------------------------------------------------------------------------------

    def _admit(self) -> list[RowsLease]:
        """Give leases their entries, in their order, as long as there is room; the leases that have all rows."""
        ready: list[RowsLease] = []
        while self._waiting:
            lease = self._waiting[0]
            missing = [picture for content, picture in lease.pictures.items() if content not in self._entries]
            held = [self._entries[content] for content in lease.pictures if content in self._entries]
            for entry in held:
                entry.holders.add(lease)  # so that making room leaves it
            need = sum(self._nbytes(picture) for picture in missing)
            if not self._make_room(need) and self._in_use(lease):
                for entry in held:
                    entry.holders.discard(lease)
                return ready
            self._waiting.popleft()
            for picture in missing:
                self._begin(picture, lease)
            lease.entries = {content: self._entries[content] for content in lease.pictures}
            for content in lease.pictures:
                self._entries.move_to_end(content)
            if all(entry.rows is not None for entry in lease.entries.values()):
                ready.append(lease)
        return ready

    def _begin(self, picture: Prepared, lease: RowsLease) -> None:
        entry = self._entries[picture.content] = _Entry(
            picture.content, self._nbytes(picture), picture, holders={lease}
        )
        self._bytes += entry.nbytes
        self._todo.append(entry)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="backbay encoder", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _make_room(self, need: int) -> bool:
        """Drop the least recently used pictures until `need` bytes fit; False if those in use leave too little."""
        for entry in list(self._entries.values()):
            if self._bytes + need <= self.budget:
                break
            if not entry.holders and entry.rows is not None:
                self._drop(entry)
        return self._bytes + need <= self.budget

    def _in_use(self, lease: RowsLease) -> bool:
        """Whether other leases hold pictures, which makes it worth to wait."""
        return any(entry.holders - {lease} or entry in self._encoded for entry in self._entries.values())

    def _let_go(self, lease: RowsLease) -> None:
        """Take a lease from its pictures; nobody needs to encode those that only it wanted."""
        for entry in lease.entries.values():
            entry.holders.discard(lease)
            if entry.rows is None and not entry.holders and entry not in self._encoded:
                self._drop(entry)

    def _drop(self, entry: _Entry) -> None:
        if self._entries.get(entry.content) is entry:
            del self._entries[entry.content]
            self._bytes -= entry.nbytes
        if entry in self._todo:
            self._todo.remove(entry)

    def _nbytes(self, picture: Prepared) -> int:
        return 4 * picture.tokens * self._width

    # -- in its thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._todo or self._closing)
                if self._closing:
                    return
                shape = _shape(self._todo[0])
                together = [entry for entry in self._todo if _shape(entry) == shape][:TOGETHER]
                for entry in together:
                    self._todo.remove(entry)
                self._encoded = list(together)
                self._cancel.clear()
            self._encode(together)

    def _encode(self, entries: list[_Entry]) -> None:
        """Encode pictures together; if that fails, each alone, so that only the faulty one gives its error."""
        try:
            pictures = [entry.picture for entry in entries if entry.picture is not None]
            found = self._embed(pictures, self._cancel)
        except CancelledError:
            self._give_up(entries)
        except BaseException as error:  # noqa: BLE001  the requests get it
            if len(entries) == 1:
                self._fail(entries[0], error)
                return
            for entry in entries:
                entry.alone = True
            self._give_up(entries)
        else:
            for entry, rows in zip(entries, found, strict=True):
                try:
                    self._take(entry, np.asarray(rows, np.float32))
                except MemoryError as error:
                    self._fail(entry, error)

    def _take(self, entry: _Entry, rows: Rows) -> None:
        if not np.isfinite(rows).all():
            self._fail(entry, LogitsError("the encoder gave rows that are not finite"))
            return
        rows.flags.writeable = False
        with self._lock:
            self._computed += 1
            entry.rows, entry.picture = rows, None
            self._over(entry)
            self._bytes += rows.nbytes - entry.nbytes
            entry.nbytes = rows.nbytes
            ready = [
                lease for lease in entry.holders if all(e.rows is not None for e in lease.entries.values())
            ]
            self._make_room(0)
            ready += self._admit()
        _tell(ready, None)

    def _give_up(self, entries: list[_Entry]) -> None:
        """The encoding brought nothing: forget the pictures that nobody wants, and encode the others again, first."""
        with self._lock:
            for entry in reversed(entries):
                self._over(entry)
                if entry.holders:
                    self._todo.appendleft(entry)
                else:
                    self._drop(entry)
            ready = self._admit()
        _tell(ready, None)

    def _fail(self, entry: _Entry, error: BaseException) -> None:
        with self._lock:
            self._over(entry)
            self._drop(entry)
            lost = list(entry.holders)
            for lease in lost:
                self._let_go(lease)
            ready = self._admit()
        _tell(lost, as_exception(error))
        _tell(ready, None)

    def _over(self, entry: _Entry) -> None:
        if entry in self._encoded:
            self._encoded.remove(entry)


def _shape(entry: _Entry) -> object:
    """What pictures must share to be encoded together."""
    assert entry.picture is not None
    return id(entry) if entry.alone else entry.picture.shape


def _tell(leases: Sequence[RowsLease], error: BaseException | None) -> None:
    for lease in leases:
        try:
            lease.done(lease, error)
        except BaseException:
            log.exception("a request with pictures could not go on")
