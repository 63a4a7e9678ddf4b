"""Requests that go on in another replica when theirs is lost: the answer is that of an undisturbed run."""

from __future__ import annotations

import asyncio
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from time import monotonic
from typing import Any, Final, cast, final

from backbay import BackendUnavailableError, CancelledError
from backbay_engine import Completion, Handle, QueueFullError, Sampled, SlotState, TokenStep
from backbay_engine.remote import Generate, Parts, Request, Resuming, ScoreTokens, unpacked

from .links import Link, ReplicaLostError, ReplicasBusyError

log = logging.getLogger(__name__)
PATIENCE: Final = 120.0  # seconds for which an answer that has begun waits for room in another replica
SOON, LATER = 0.05, 1.0  # seconds between two tries


class Asked(ABC):
    """A request on its way.

    begun   whether a replica has taken it; what has begun is never refused for want of room
    losses  replicas that were lost one after the other, without anything new from them
    """

    def __init__(self, handle: Handle[Any], session: str) -> None:
        self.handle, self._session = handle, session
        self.begun, self.losses, self._grown = False, 0, False

    @property
    @abstractmethod
    def state(self) -> SlotState:
        """The sequence that it takes."""

    @abstractmethod
    def _left(self) -> Request[Any]:
        """The request for what is left to be done."""

    @abstractmethod
    def _take(self, item: Any) -> bool:
        """Take what a replica gave; whether it was new."""

    @abstractmethod
    def cancelled(self) -> None:
        """End the handle with what has come so far."""

    async def answer(self, link: Link, most_losses: int) -> None:
        """Ask replicas until the answer is whole; every end is that of the handle."""
        try:
            while not await self._ask(link, most_losses):
                pass
        except asyncio.CancelledError:
            self.cancelled()
            raise
        except Exception as error:  # noqa: BLE001  the request gets it
            self.handle.fail(error)

    async def _ask(self, link: Link, most_losses: int) -> bool:
        """Ask one replica; whether the answer is whole."""
        self._grown = False
        try:
            await self._with_room(link)
        except ReplicaLostError as lost:
            self.losses = 0 if self._grown else self.losses + 1
            if self.losses > most_losses:
                raise BackendUnavailableError(
                    f"{self.losses} replicas were lost one after the other, and gave nothing of the answer"
                ) from lost
            log.warning("a replica was lost (%s); its request goes on in another", lost)
            return self.handle.done
        return True

    async def _with_room(self, link: Link) -> None:
        """Ask a replica, and wait for room if the request has begun in another."""
        give_up, pause = monotonic() + PATIENCE, SOON
        while True:
            try:
                return await self._take_all(link)
            except ReplicasBusyError as busy:
                if not self.begun or monotonic() > give_up:
                    raise QueueFullError(str(busy), 0) from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, LATER)

    async def _take_all(self, link: Link) -> None:
        async with aclosing(cast("Any", link.stream(self._left(), session=self._session))) as batches:
            async for batch in batches:
                self.begun = True
                for item in batch:
                    if isinstance(item, bytes):
                        raise unpacked(item)
                    self._grown = self._take(item) or self._grown
                    if self.handle.done:
                        return
        raise ReplicaLostError("its answer has no end")


@final
class AskedText(Asked):
    """A request for text. Replicas get the tokens so far, and a seed: they go on with the same choices."""

    def __init__(
        self, request: Generate, handle: Handle[Completion], ended: Callable[[Completion], None]
    ) -> None:
        super().__init__(handle, request.options.session or "")
        self._resuming, self._ended = Resuming(request, sys.maxsize), ended
        prompt = request.prompt
        self._prompt_tokens = 0 if isinstance(prompt, Parts) else len(prompt)
        self._tokens, self._texts = list(request.options.resume), list[str]()
        self._sent = False

    @property
    def state(self) -> SlotState:
        return SlotState(busy=True, tokens=self._prompt_tokens + len(self._tokens))

    def _left(self) -> Generate:
        if self._sent:
            self._resuming.again()
        self._sent = True
        request = self._resuming.request
        return replace(request, begin_by=request.begin_by - monotonic())  # clocks differ

    def _take(self, item: TokenStep | Completion) -> bool:
        if isinstance(item, Completion):
            whole = self._resuming.whole(item)
            self._ended(whole)
            self.handle.succeed(whole)
        elif self._resuming.note(item):
            self._tokens += item.tokens
            self._texts.append(item.text)
            self.handle.emit(item)
        return True

    def cancelled(self) -> None:
        self.handle.succeed(Completion("".join(self._texts), self._tokens, "cancelled"))


@final
class AskedScores(Asked):
    """A request for the log-probabilities of a prompt's tokens; what came already is not given again."""

    def __init__(self, request: ScoreTokens, handle: Handle[int]) -> None:
        super().__init__(handle, "")
        self._request = request
        self._given = self._seen = 0  # in all, and of the replica that is asked now

    @property
    def state(self) -> SlotState:
        return SlotState(busy=True, tokens=len(self._request.prompt))

    def _left(self) -> ScoreTokens:
        self._seen = 0
        return self._request

    def _take(self, item: TokenStep | int) -> bool:
        if not isinstance(item, TokenStep):
            self.handle.succeed(item)
            return True
        scores: tuple[Sampled, ...] = item.logprobs or ()
        known = max(0, self._given - self._seen)
        self._seen += len(scores)
        if self._seen <= self._given:
            return False
        self._given = self._seen
        self.handle.emit(item._replace(tokens=item.tokens[known:], logprobs=scores[known:]))
        return True

    def cancelled(self) -> None:
        self.handle.succeed(self._given)


@final
class AskedResult(Asked):
    """A request that gives its result, and nothing before it."""

    def __init__(self, request: Request[Any], handle: Handle[Any]) -> None:
        super().__init__(handle, "")
        self._request = request

    @property
    def state(self) -> SlotState:
        return SlotState(busy=True)

    def _left(self) -> Request[Any]:
        return self._request

    def _take(self, item: Any) -> bool:
        self.handle.succeed(item)
        return True

    def cancelled(self) -> None:
        self.handle.fail(CancelledError("the request was cancelled"))


def asked_of(request: Request[Any], handle: Handle[Any], ended: Callable[[Completion], None]) -> Asked:
    """A request on its way; `ended` gets the whole text, if it is one for text."""
    if isinstance(request, Generate):
        return AskedText(request, handle, ended)
    if isinstance(request, ScoreTokens):
        return AskedScores(request, handle)
    return AskedResult(request, handle)
