"""The pool: models in memory, loaded when they are first asked for, and closed when others need the room."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any, Literal, Self, TypeAlias, TypeVar, final

from backbay import NoMemoryError
from backbay_engine import LLM

from ..errors import BusyError, InvalidRequestError, ModelNotFoundError, UnavailableError
from .catalogue import FRESH, Catalogue, CatalogueEntry

log = logging.getLogger(__name__)
Load: TypeAlias = Callable[[CatalogueEntry, Callable[[float], None], Event], LLM]
Status: TypeAlias = Literal["waiting", "loading", "ready", "leaving"]
CLOSING = "the server is shutting down"
Mix: TypeAlias = tuple[tuple[str, float], ...]
"""Adapters and their scales."""
_TICKS = count(1)
T = TypeVar("T")


@final
class PooledModel:
    """A model that is wanted: in line, being loaded, in memory, or about to leave."""

    def __init__(self, entry: CatalogueEntry) -> None:
        self.entry, self.stamp, self._stamped_at = entry, entry.stamp(), time.monotonic()
        self.llm: LLM | None = None
        self.error: BaseException | None = None
        self.status: Status = "waiting"
        self.progress = 0.0
        self.users = 0  # leases, and requests that wait for one
        self.usual: Mix = ()  # of requests that name no adapter
        self.used_at = next(_TICKS)
        self.settled, self.gone = asyncio.Event(), asyncio.Event()

    def show(self, done: float) -> None:
        self.progress = done

    def is_replaced(self) -> bool:
        """Whether the file has been replaced, or written to, since it was loaded; looked at once in a while."""
        if self.llm is None or time.monotonic() - self._stamped_at < FRESH:
            return False
        self._stamped_at, stamp = time.monotonic(), self.entry.stamp()
        return stamp not in (None, self.stamp)


@final
class ModelLease:
    """A model in memory, which stays there until the lease is released. A context manager."""

    def __init__(self, pool: ModelPool, held: PooledModel, llm: LLM, asked: CatalogueEntry) -> None:
        self._pool, self._held, self.llm, self._asked = pool, held, llm, asked
        self.name = asked.name
        self._released = False

    @property
    def adapters(self) -> list[str]:
        """The names of the model's adapters; requests may give their numbers."""
        return [name for name, _ in self._asked.adapters]

    @property
    def usual(self) -> Mix:
        """The adapters of requests that name none, with their scales."""
        return self._held.usual

    @usual.setter
    def usual(self, mix: Mix) -> None:
        self._held.usual = mix

    def mix(self, lora: Sequence[tuple[int, float]] | None = None) -> Mix:
        """The adapters of a request: those of these numbers, or the one in the model's name, or the usual ones."""
        if lora is not None:
            return self.numbered(lora)
        return ((self._asked.adapter, 1.0),) if self._asked.adapter else self.usual

    def numbered(self, lora: Sequence[tuple[int, float]]) -> Mix:
        """Adapters by their numbers; InvalidRequestError if there is no such number."""
        names = self.adapters
        wrong = next((number for number, _ in lora if number >= len(names)), None)
        if wrong is not None:
            raise InvalidRequestError(
                f"lora: there is no adapter {wrong}; the model has {len(names)}", param="lora"
            )
        return tuple((names[number], scale) for number, scale in lora)

    def release(self) -> None:
        """Allow the model to leave. Releasing again does nothing."""
        if not self._released:
            self._released = True
            self._pool.drop(self._held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@final
class ModelPool:
    """At most `max_loaded` models at a time. A model that loads, or answers, is never closed for another."""

    def __init__(
        self,
        catalogue: Catalogue,
        load: Load,
        *,
        max_loaded: int = 1,
        patience: float = 600.0,  # seconds that a request waits for its model
        most_waiting: int = 1024,  # requests that may wait for models at a time
    ) -> None:
        self.catalogue, self._load_model = catalogue, load
        self._max_loaded, self._patience, self._most_waiting = max_loaded, patience, most_waiting
        self._wanted: dict[tuple[Path, str], PooledModel] = {}  # by identity; what leaves is not here
        self._line: deque[PooledModel] = deque()
        self._in_memory: list[PooledModel] = []  # what is being loaded or closed counts
        self._departures = 0
        self._awaited = set[tuple[Path, str]]()
        self._waiting = 0
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server_of_line: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(max_loaded + 1, "backbay pool")
        self._closing = Event()

    # -- for requests ------------------------------------------------------------------------------------

    async def lease(self, name: str) -> ModelLease:
        """Wait until a model is in memory. ModelNotFoundError, UnavailableError, or the error of loading it."""
        entry = await self._entry(name)
        if self._closing.is_set():
            raise UnavailableError(CLOSING)
        held = self._held(entry.whole)
        held.users += 1
        held.used_at = next(_TICKS)
        try:
            if held.llm is None:
                await self._wait_for(held)
            if held.error is not None:
                raise held.error
            if held.llm is None:
                raise UnavailableError(CLOSING)
            return ModelLease(self, held, held.llm, entry)
        except BaseException:
            self.drop(held)
            raise

    def drop(self, held: PooledModel) -> None:
        held.users -= 1
        if not held.users:
            if held.status == "waiting" and held in self._line:
                self._line.remove(held)
                self._forget(held)
            elif held.status == "leaving":
                self._start(self._close_model(held))
        self._changed.set()

    def preload(self) -> None:
        """Begin to load the models that were named one by one, as many as may be in memory."""
        for entry in self.catalogue.named[: self._max_loaded]:
            self._awaited.add(entry.identity)
            self._held(entry)

    @property
    def ready(self) -> bool:
        """Whether the models that were named have been loaded."""
        return not self._closing.is_set() and not self._awaited

    def listed(self) -> list[CatalogueEntry]:
        """The models on offer: those of the catalogue, and those in memory whose files are gone."""
        found = {each.name: each for each in self.catalogue.listed()}
        for held in self._in_memory:
            found.setdefault(held.entry.name, held.entry)
        return [*found.values()]

    def held(self) -> Iterator[PooledModel]:
        """The models in memory, those that leave, and those in line."""
        yield from [*self._in_memory, *self._line]

    async def close(self) -> None:
        """Close all models, which ends their requests; requests that wait for a model get UnavailableError."""
        self._closing.set()
        for held in [*self._line]:
            self._line.remove(held)
            self._settle(held, UnavailableError(CLOSING))
        for held in [*self._in_memory]:
            if held.llm is not None and (held.status != "leaving" or held.users):
                held.status = "leaving"
                self._start(self._close_model(held))
        self._changed.set()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown()

    def abandon(self) -> None:
        """Close all models; the event loop has ended, and all requests with it."""
        self._closing.set()  # which ends loading
        self._threads.shutdown()
        for held in self._in_memory:
            if held.llm is not None:
                held.llm.close()

    # -- which model -------------------------------------------------------------------------------------

    async def _entry(self, name: str) -> CatalogueEntry:
        """The model of a name. One in memory answers to its name even if its file is gone."""
        named = self.catalogue.named_so(name)
        if named is not None:
            return named
        for held in self._wanted.values():
            if held.entry.name == name:
                return held.entry
        return await asyncio.to_thread(self.catalogue.find, name)

    def _held(self, entry: CatalogueEntry) -> PooledModel:
        """The model, wanted from now on; if its file was replaced since it was loaded, the new file's."""
        held = self._wanted.get(entry.identity)
        if held is not None and held.is_replaced():
            self._leave(held)
            held = None
        if held is None:
            held = PooledModel(entry)
            if held.stamp is None:
                raise ModelNotFoundError(f"the file of the model {entry.name!r} is gone")
            self._wanted[entry.identity] = held
            self._line.append(held)
            self._changed.set()
            if self._server_of_line is None or self._server_of_line.done():
                self._server_of_line = self._start(self._serve_line())
        return held

    async def _wait_for(self, held: PooledModel) -> None:
        if self._waiting >= self._most_waiting:
            raise BusyError(f"{self._waiting} requests wait for models to load already; try again later")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                await held.settled.wait()
        except TimeoutError:
            raise UnavailableError(
                f"the model {held.entry.name!r} is still {held.status}; try again later"
            ) from None
        finally:
            self._waiting -= 1

    # -- room --------------------------------------------------------------------------------------------

    async def _serve_line(self) -> None:
        """Load what stands in line, in turn, as soon as there is room."""
        while self._line:
            if len(self._in_memory) < self._max_loaded:
                held = self._line.popleft()
                held.status = "loading"
                self._in_memory.append(held)
                self._start(self._load(held))
            elif not await self._free_one():
                self._changed.clear()
                await self._changed.wait()

    async def _free_one(self) -> bool:
        """Wait until a model has left: one that leaves already, an idle one, or the one that was used longest ago."""
        able = [held for held in self._in_memory if held.llm is not None or held.status == "leaving"]
        if not able:
            return False
        chosen = min(able, key=lambda held: (held.status != "leaving", held.users > 0, held.used_at))
        if chosen.status != "leaving":
            self._leave(chosen)
        await chosen.gone.wait()
        return True

    def _leave(self, held: PooledModel) -> None:
        """Give the model to no further request, and close it when its requests are done."""
        held.status = "leaving"
        self._forget(held)
        if not held.users:
            self._start(self._close_model(held))

    # -- loading and closing -----------------------------------------------------------------------------

    async def _load(self, held: PooledModel) -> None:
        try:
            while held.llm is None:
                before = self._departures
                try:
                    held.llm = await self._in_thread(self._load_model, held.entry, held.show, self._closing)
                except NoMemoryError:  # another model may leave, or may just have left
                    if self._closing.is_set() or not (self._departures > before or await self._free_one()):
                        raise
        except BaseException as error:  # noqa: BLE001  the requests that wait get it
            self._in_memory.remove(held)
            closing = self._closing.is_set()
            self._settle(held, UnavailableError(CLOSING) if closing else error)
            return
        held.status = "ready"
        self._awaited.discard(held.entry.identity)
        self._settle(held)
        if self._closing.is_set():
            held.status = "leaving"
            await self._close_model(held)

    def _settle(self, held: PooledModel, error: BaseException | None = None) -> None:
        held.error = error
        if error is not None:
            log.warning("the model %s cannot be loaded: %s", held.entry.name, error)
            self._forget(held)
            held.gone.set()
        held.settled.set()
        self._changed.set()

    async def _close_model(self, held: PooledModel) -> None:
        llm, held.llm = held.llm, None
        if llm is None:
            return  # someone closes it already
        try:
            await self._in_thread(llm.close)
        except Exception:
            log.exception("the model %s could not be closed", held.entry.name)
        self._in_memory.remove(held)
        self._departures += 1
        held.gone.set()
        self._changed.set()

    def _forget(self, held: PooledModel) -> None:
        if self._wanted.get(held.entry.identity) is held:
            del self._wanted[held.entry.identity]

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
