"""Calls: requests and questions on their way to another process, which go on in the next one when theirs is lost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, final

from backbay import CancelledError

from ..errors import DeadlineError
from ..runner.requests.answer import Completion, TokenStep
from ..runner.requests.handle import Handle
from ..runner.requests.request import Generate, Request, ScoreTokens
from ..text.sampling import Sampled
from .questions import Question

Message: TypeAlias = Request[Any] | Question[Any]


class RemoteCall(ABC):
    """A request or a question that is not over. Its link tells what comes of it, from any thread.

    leave      takes it off the list of open calls; done before its caller learns of the end
    begun      whether a process has taken it
    cancelled  whether its caller wants no more of it
    sent       how often it was sent
    grown      whether anything new has come since then
    losses     processes that it has lost, as its link counts them
    """

    def __init__(self, message: Message, handle: Handle[Any], leave: Callable[[], object]) -> None:
        self.message, self.handle, self.leave = message, handle, leave
        self.begun = self.cancelled = self.grown = False
        self.sent = self.losses = 0

    @property
    def given(self) -> int:
        """Tokens that its caller has got."""
        return 0

    def send(self) -> Message:
        """The message for the next process: what is left to be done."""
        self.sent, self.grown = self.sent + 1, False
        return self._rest()

    def take(self, item: Any) -> None:
        """Take a step, or the result."""
        if not isinstance(item, TokenStep):
            self.leave()
            self.handle.succeed(self._whole(item))
        elif (step := self._news(item)) is not None:
            self.grown = True
            self.handle.emit(step)

    def fail(self, error: BaseException) -> None:
        self.leave()
        self.handle.fail(error)

    def end_late(self, now: float) -> None:
        """Fail if no process has begun it by its deadline, and none has begun it before."""
        message = self.message
        if not isinstance(message, Generate) or self.begun or self.given > len(message.options.resume):
            return
        if message.begin_by <= now:
            told = "the request had not begun by its deadline: the worker was not ready"
            self.fail(DeadlineError(told))

    @abstractmethod
    def end_early(self) -> None:
        """End with what has come so far, as it was cancelled."""

    @abstractmethod
    def _rest(self) -> Message:
        """What is left to be done."""

    @abstractmethod
    def _news(self, step: TokenStep) -> TokenStep | None:
        """The part of a step that the caller has not got yet."""

    def _whole(self, result: Any) -> Any:
        """The result, with what earlier processes gave."""
        return result


@final
class TextCall(RemoteCall):
    """A request for text, with a seed. The next process gets the tokens so far, and goes on with the same choices."""

    def __init__(self, request: Generate, handle: Handle[Completion], leave: Callable[[], object]) -> None:
        super().__init__(request, handle, leave)
        self._request = request
        self._tokens, self._texts = list(request.options.resume), list[str]()
        self._logprobs, self._ended = list[Sampled](), False

    @property
    def given(self) -> int:
        return len(self._tokens)

    def end_early(self) -> None:
        self.take(Completion("".join(self._texts), self._tokens, "cancelled"))

    def _rest(self) -> Generate:
        options = self._request.options
        if len(self._tokens) == len(options.resume):
            return self._request
        # It has begun before its deadline.
        return replace(self._request, options=replace(options, resume=tuple(self._tokens)), begin_by=math.inf)

    def _news(self, step: TokenStep) -> TokenStep | None:
        if self._ended:  # this last step came already, before its process was lost
            self.grown = True
            return None
        self._tokens += step.tokens
        self._texts.append(step.text)
        self._logprobs += step.logprobs or ()
        self._ended = step.finish_reason is not None
        return step

    def _whole(self, result: Completion) -> Completion:
        if self.sent > 1 and result.logprobs is not None:
            result.logprobs = self._logprobs
        return result


@final
class TokenScoreCall(RemoteCall):
    """A request for the log-probabilities of a prompt's tokens; the next process gives them from the first on."""

    def __init__(self, request: ScoreTokens, handle: Handle[int], leave: Callable[[], object]) -> None:
        super().__init__(request, handle, leave)
        self._scores = self._seen = 0  # given in all, and by the process that is asked now

    def end_early(self) -> None:
        self.take(self._scores)

    def _rest(self) -> Message:
        self._seen = 0
        return self.message

    def _news(self, step: TokenStep) -> TokenStep | None:
        scores = step.logprobs or ()
        known = max(0, self._scores - self._seen)
        self._seen += len(scores)
        if self._seen <= self._scores:
            return None
        self._scores = self._seen
        return step._replace(tokens=step.tokens[known:], logprobs=scores[known:])


@final
class ResultCall(RemoteCall):
    """A request or a question that gives its result, and nothing before it."""

    def end_early(self) -> None:
        self.fail(CancelledError("the request was cancelled"))

    def _rest(self) -> Message:
        return self.message

    def _news(self, step: TokenStep) -> TokenStep:
        return step


def call_of(message: Message, handle: Handle[Any], leave: Callable[[], object]) -> RemoteCall:
    match message:
        case Generate():
            return TextCall(message, handle, leave)
        case ScoreTokens():
            return TokenScoreCall(message, handle, leave)
    return ResultCall(message, handle, leave)
