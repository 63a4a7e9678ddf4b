"""The link to replicas: calls go on in another replica when theirs is lost, and answers are those of an undisturbed run."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, wait
from contextlib import aclosing
from dataclasses import replace
from time import monotonic, time
from typing import Any, Final, cast, final

from backbay import BackendMemory, BackendUnavailableError, CancelledError
from backbay.plugin import Cancel, Progress
from backbay_engine import Completion, Handle, QueueFullError, State, Tokenizer, Totals
from backbay_engine.remote import (
    Generate,
    GetMemory,
    Message,
    ModelDescription,
    ModelFacts,
    ProcessLink,
    Question,
    RemoteCall,
    unpack_error,
)

log = logging.getLogger(__name__)
PATIENCE: Final = 120.0  # seconds for which an answer that has begun waits for room in another replica
SOON, LATER = 0.05, 1.0  # seconds between two tries
PAUSE: Final = 0.5  # seconds between two tries to learn what the model is
POLL: Final = 0.2  # seconds between two looks at the flag that cancels a load


class ReplicaLostError(Exception):
    """A replica ended, or left, before its answer did."""


class ReplicasBusyError(Exception):
    """No replica has room, and as many requests wait as may."""


class ReplicaTransport(ABC):
    """Reaches the replicas of one model, whatever carries its messages."""

    @abstractmethod
    def stream(self, message: Message, *, session: str) -> AsyncIterator[list[Any]]:
        """What a replica gives for a message, in batches; the first one, perhaps empty, says that it has begun.

        Equal sessions go to the same replica while it lives and has room; "" goes to any. Leaving the loop cancels.
        """

    @abstractmethod
    async def call(self, method: str) -> Any:
        """What a method of any replica returns."""


@final
class RayLink(ProcessLink):
    """Hands calls to replicas. Its coroutines run in one event loop, which no caller may hold up.

    name     the model's, for errors
    retries  replicas that a call may lose one after the other without anything new from them
    """

    one_process = False

    def __init__(self, replicas: ReplicaTransport, loop: AbstractEventLoop, name: str, retries: int) -> None:
        super().__init__()
        self._replicas, self._loop, self._name, self._retries = replicas, loop, name, retries
        self._answers: dict[RemoteCall, Future[None]] = {}

    def open(self, progress: Progress | None, cancel: Cancel | None) -> tuple[ModelFacts, Tokenizer | None]:
        described = asyncio.run_coroutine_threadsafe(self.describe(), self._loop)
        while not wait((described,), POLL).done:
            if cancel is not None and cancel.is_set():
                described.cancel()
                raise CancelledError("the server ends before a replica was there")
        description, memory = described.result()
        self.known = {GetMemory: memory}
        return description.facts, description.tokenizer(self._name)

    async def describe(self) -> tuple[ModelDescription, BackendMemory]:
        """The description by any replica. If one is lost before it answers, or none has room, another one is asked."""
        while True:
            try:
                return cast("tuple[ModelDescription, BackendMemory]", await self._replicas.call("describe"))
            except (ReplicaLostError, ReplicasBusyError) as error:
                log.info("no replica has told what its model is yet (%s)", error)
                await asyncio.sleep(PAUSE)

    def stream(self, call: RemoteCall) -> None:
        answer = asyncio.run_coroutine_threadsafe(self._answer(call), self._loop)
        self._answers[call] = answer
        if call.cancelled:  # meanwhile, by its `on_step`
            answer.cancel()
        answer.add_done_callback(lambda _: self._answers.pop(call, None))

    def cancel(self, call: RemoteCall) -> None:
        if (answer := self._answers.get(call)) is not None:
            answer.cancel()

    def state(self, ask: Callable[[Question[State]], Handle[State]]) -> None:
        """None: replicas serve other applications, too."""

    def close(self) -> None:
        for answer in list(self._answers.values()):
            answer.cancel()

    def after_fork(self) -> None:
        self._answers.clear()

    # -- in the event loop -------------------------------------------------------------------------------

    async def _answer(self, call: RemoteCall) -> None:
        """Ask replicas until the answer is whole; every end is that of the call."""
        try:
            while not call.handle.done:
                await self._ask(call)
        except asyncio.CancelledError:
            call.end_early()
            raise
        except Exception as error:  # noqa: BLE001  the call gets it
            call.fail(error)

    async def _ask(self, call: RemoteCall) -> None:
        """Ask one replica; what has begun in another one waits for room."""
        give_up, pause = monotonic() + PATIENCE, SOON
        while True:
            try:
                await self._take_all(call)
            except ReplicasBusyError as busy:
                if not call.begun or monotonic() > give_up:
                    raise QueueFullError(str(busy), 0) from None
                await asyncio.sleep(pause)
                pause = min(2 * pause, LATER)
            except ReplicaLostError as lost:
                call.losses = 0 if call.grown else call.losses + 1
                if call.losses > self._retries:
                    told = "replicas were lost one after the other, and gave nothing of the answer"
                    raise BackendUnavailableError(f"{call.losses} {told}") from lost
                log.warning("a replica was lost (%s); its request goes on in another", lost)
                return
            else:
                return

    async def _take_all(self, call: RemoteCall) -> None:
        """Take what one replica gives, up to the end of the answer."""
        message, session = call.send(), ""
        if isinstance(message, Generate):
            session = message.options.session or ""
            message = replace(
                message, begin_by=message.begin_by - monotonic() + time()
            )  # machines share no other clock
        async with aclosing(cast("Any", self._replicas.stream(message, session=session))) as batches:
            async for batch in batches:
                call.begun = True
                for item in batch:
                    if isinstance(item, bytes):
                        raise unpack_error(item)
                    if isinstance(item, Completion):
                        made = item.timings
                        self.totals += Totals(made.prompt_tokens, made.reused_tokens, made.tokens)
                    call.take(item)
                    if call.handle.done:
                        return
        raise ReplicaLostError("its answer has no end")
