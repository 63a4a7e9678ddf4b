"""An engine whose steps run in replicas, as the application sees it."""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from backbay import BackendMemory, BackendUnavailableError, ClosedError
from backbay_engine import (
    Completion,
    GenerationOptions,
    Handle,
    QueueFullError,
    RequestError,
    SlotState,
    Snapshot,
    State,
    Totals,
)
from backbay_engine.remote import (
    Counters,
    Engine,
    Image,
    Opened,
    Parts,
    Prepared,
    Prompt,
    generate_request,
    unpacked,
)

from .asked import Asked, AskedScores, AskedText
from .links import Link, ReplicaLostError, ReplicasBusyError

log = logging.getLogger(__name__)
PAUSE: Final = 0.5  # seconds between two tries
T = TypeVar("T")


@dataclass(frozen=True)
class Description:
    """The model of a replica, as applications know it."""

    opened: Opened
    memory: BackendMemory
    parallel: int


async def description(link: Link) -> Description:
    """The description by any replica. If one is lost before it answers, or none has room, another one is asked."""
    while True:
        try:
            found: Description = await link.call("describe")
        except (ReplicaLostError, ReplicasBusyError) as error:
            log.info("no replica has told what its model is yet (%s)", error)
            await asyncio.sleep(PAUSE)
        else:
            return found


@final
class ReplicatedEngine(Engine):
    """Hands requests to the replicas of a model. Its coroutines run in one event loop, which no caller may hold up.

    retries  replicas that a request may lose one after the other without anything new from them
    """

    def __init__(
        self, link: Link, loop: AbstractEventLoop, described: Description, *, name: str, retries: int
    ) -> None:
        self.facts, self.tokenizer = described.opened.facts, described.opened.tokenizer(name)
        self._link, self._loop, self._described, self._retries = link, loop, described, retries
        self._lock, self._asked = Lock(), dict[Asked, Future[None]]()
        self._totals, self._closed = Totals(), False

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError("the model is closed")

    def generate(
        self, prompt: Prompt, options: GenerationOptions, on_step: Any, begin_by: float
    ) -> Handle[Completion]:
        request = generate_request(prompt, options, begin_by, self.facts, self.tokenizer)
        return self._begin(lambda handle: AskedText(request, handle, self._count), on_step)

    def score_tokens(self, prompt: Sequence[int], top: int) -> Handle[int]:
        return self._begin(lambda handle: AskedScores(list(prompt), top, handle), None)

    def save(self, source: Sequence[int] | Handle[Any]) -> Snapshot:
        raise RequestError(
            "a snapshot is that of one process; load the model there, instead of asking replicas"
        )

    def restore(self, snapshot: Snapshot) -> None:
        raise RequestError(
            "a snapshot is restored into one process; load the model there, instead of asking replicas"
        )

    def score(self, prompt: Prompt) -> Handle[NDArray[np.float32]]:
        handle: Handle[NDArray[np.float32]] = Handle(lambda: None)
        try:
            handle.succeed(self._answer("score", prompt))
        except Exception as error:  # noqa: BLE001  the request gets it
            handle.fail(error)
        return handle

    def embed(self, prompts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self._answer("embed", [list(prompt) for prompt in prompts])
        return found

    def prepare(self, picture: Image | Prepared) -> Prepared:
        prepared: Prepared = self._answer("prepare", picture)
        return prepared

    def encode(self, parts: Parts) -> list[int]:
        ids: list[int] = self._answer("encode", parts)
        return ids

    def embed_picture(self, picture: Image | Prepared) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = self._answer("embed_picture", picture)
        return rows

    def counters(self) -> Counters:
        """Those of any one replica."""
        counters: Counters = self._answer("counters")
        return counters

    def state(self) -> State:
        """The requests of this application, and the free sequences of one replica; others may serve others."""
        self.check_open()
        asked = [*self._asked]
        running = [each.state for each in asked if each.begun]
        free = max(0, self._described.parallel - len(running))
        return State((*running, *(SlotState(),) * free), len(asked) - len(running), self._totals)

    def memory(self) -> BackendMemory:
        """That of one replica."""
        self.check_open()
        return self._described.memory

    def forget(self) -> None:
        """Empty the cache of one replica, whichever it is."""
        self._answer("forget")

    def close(self) -> None:
        """End all requests of this application; the replicas stay."""
        with self._lock:
            self._closed = True
            lost, self._asked = self._asked, {}
        for asked, answering in lost.items():
            asked.handle.fail(ClosedError("the model was closed before the request was done"))
            answering.cancel()

    # -- inside ------------------------------------------------------------------------------------------

    def _begin(self, make: Any, on_step: Any) -> Handle[Any]:
        """Ask for an answer that comes step by step."""

        def cancel() -> None:
            answering.cancel()

        handle: Handle[Any] = Handle(cancel, on_step)
        asked: Asked = make(handle)
        with self._lock:
            self.check_open()
            answering = self._run(asked.answer(self._link, self._retries))
            self._asked[asked] = answering
        answering.add_done_callback(lambda _: self._asked.pop(asked, None))
        return handle

    def _answer(self, method: str, *arguments: Any) -> Any:
        """Ask any replica, and wait; another one is asked if it is lost."""
        self.check_open()
        lost = 0
        while True:
            try:
                error, found = self._run(self._link.call("ask", method, *arguments)).result()
                break
            except ReplicasBusyError as busy:
                raise QueueFullError(str(busy)) from None
            except ReplicaLostError as last:
                lost += 1
                if lost > self._retries:
                    raise BackendUnavailableError(f"{lost} replicas were lost while they answered") from last
        if error is not None:
            raise unpacked(error)
        return found

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _count(self, answer: Completion) -> None:
        made = answer.timings
        self._totals += Totals(made.prompt_tokens, made.reused_tokens, made.tokens)
