"""The port of a model whose steps run in replicas, as the application sees it."""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, TypeVar, cast, final

from backbay import BackendMemory, BackendUnavailableError, ClosedError
from backbay_engine import Completion, Handle, QueueFullError, RequestError, SlotState, State, Totals
from backbay_engine.remote import (
    GetMemory,
    OnStep,
    Opened,
    Port,
    Question,
    Request,
    sendable,
    unpacked,
)

from .asked import Asked, asked_of
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
class ReplicasPort(Port):
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

    def submit(self, request: Request[T], on_step: OnStep | None = None) -> Handle[T]:
        sent = sendable(request, self.facts, self.tokenizer)

        def cancel() -> None:
            answering.cancel()

        handle = Handle[Any](cancel, on_step, request=sent)
        asked = asked_of(sent, handle, self._count)
        with self._lock:
            self.check_open()
            answering = self._run(asked.answer(self._link, self._retries))
            self._asked[asked] = answering
        answering.add_done_callback(lambda _: self._asked.pop(asked, None))
        return handle

    def ask(self, question: Question[T]) -> T:
        """Ask any replica; another one is asked if it is lost."""
        self.check_open()
        if question.of_a_process:
            raise RequestError(
                "a snapshot is that of one process; load the model there, instead of asking replicas"
            )
        if isinstance(question, GetMemory):
            return cast("T", self._described.memory)
        lost = 0
        while True:
            try:
                error, found = self._wait(self._link.call("ask", question))
                break
            except ReplicasBusyError as busy:
                raise QueueFullError(str(busy)) from None
            except ReplicaLostError as last:
                lost += 1
                if lost > self._retries:
                    raise BackendUnavailableError(f"{lost} replicas were lost while they answered") from last
        if error is not None:
            raise unpacked(error)
        return cast("T", found)

    def state(self) -> State:
        """The requests of this application, and the free sequences of one replica; others may serve others."""
        self.check_open()
        asked = [*self._asked]
        running = [each.state for each in asked if each.begun]
        free = max(0, self._described.parallel - len(running))
        return State((*running, *(SlotState(),) * free), len(asked) - len(running), self._totals)

    def close(self) -> None:
        """End all requests of this application; the replicas stay."""
        with self._lock:
            self._closed = True
            lost, self._asked = self._asked, {}
        for asked, answering in lost.items():
            asked.handle.fail(ClosedError("the model was closed before the request was done"))
            answering.cancel()

    # -- inside ------------------------------------------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result; an interruption of the waiting ends the work."""
        answering = self._run(work)
        try:
            return answering.result()
        finally:
            answering.cancel()

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _count(self, answer: Completion) -> None:
        made = answer.timings
        self._totals += Totals(made.prompt_tokens, made.reused_tokens, made.tokens)
