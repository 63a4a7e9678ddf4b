"""The port of a model in other processes: requests and questions go to them over a link."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any, ClassVar, TypeVar, cast, final

from backbay import ClosedError
from backbay.internals import close_after_fork
from backbay.plugin import Cancel, Progress

from ..errors import RequestError
from ..media.prompts import PromptParts
from ..runner.requests.generation import check_generation
from ..runner.requests.handle import AdmittedPlace, Handle, OnStep, require_elsewhere, wait_for
from ..runner.requests.request import NUMBERS, AnyRequest, Generate, Request
from ..runner.state import SlotState, State, Totals
from ..text.formats import check_format
from ..text.tokenizers import Tokenizer
from .admissions import Admissions
from .contract import ModelFacts, Port
from .questions import Question
from .remote_calls import Message, RemoteCall, call_of

T = TypeVar("T")


class ProcessLink(ABC):
    """Carries calls to the processes of a model, and tells each call what comes of it. When a process is lost, its
    calls go on in another one, or fail, as the link decides.

    one_process  whether one process answers all calls
    known        the answers to questions that no process need be asked, by their classes
    lock         held while calls are added
    totals       the tokens of processes that do not tell them any longer, or never do
    """

    one_process: ClassVar[bool]
    known: Mapping[type[Question[Any]], Any] = {}

    def __init__(self) -> None:
        self.calls: dict[int, RemoteCall] = {}
        self.lock = RLock()  # the garbage collector may close in the thread that holds it
        self.totals = Totals()

    @property
    def pid(self) -> int | None:
        """The id of the model's process; None if none lives, or if there are several."""
        return None

    @property
    def runs(self) -> bool:
        """Whether a process is there, or starts."""
        return True

    @abstractmethod
    def open(self, progress: Progress | None, cancel: Cancel | None) -> tuple[ModelFacts, Tokenizer | None]:
        """Wait until the model is loaded."""

    @abstractmethod
    def stream(self, call: RemoteCall) -> None:
        """Send a call, or let it wait for a process; `lock` is held."""

    @abstractmethod
    def cancel(self, call: RemoteCall) -> None:
        """End a call early, with what came so far."""

    @abstractmethod
    def state(self, ask: Callable[[Question[State]], Handle[State]]) -> State | None:
        """The state that a process tells; None if none tells it."""

    def note(self, question: Question[Any]) -> None:
        """Take note of a question that was answered, if later processes must know of it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the processes; all calls have ended."""

    @abstractmethod
    def after_fork(self) -> None:
        """Let go of the processes in a forked child: they are the parent's."""


@final
class RemotePort(Port):
    """A model in other processes. It answers once it is loaded.

    parallel, queue  requests that run, and that may wait; None: any number
    """

    def __init__(self, link: ProcessLink, parallel: int, queue: int | None = None) -> None:
        self._link, self._places = link, Admissions(parallel, queue)
        self._closed_because: str | None = None
        close_after_fork(self)

    @property
    def pid(self) -> int | None:
        """The id of the model's process; None if none lives, or if there are several."""
        return self._link.pid

    def load(self, progress: Progress | None = None, cancel: Cancel | None = None) -> None:
        """Wait until the model is loaded; if that fails, close."""
        try:
            self.facts, self.tokenizer = self._link.open(progress, cancel)
        except BaseException:
            self.close()
            raise

    def check_open(self) -> None:
        if self._closed_because is not None:
            raise ClosedError(f"the model is closed{self._closed_because}")

    def submit(self, request: Request[T], on_step: OnStep | None = None) -> Handle[T]:
        sent = _sendable(request, self.facts, self.tokenizer)
        with self._places.taken() as place:
            return self.begin(sent, on_step, place)

    def ask(self, question: Question[T]) -> T:
        self.check_open()
        if question.of_a_process and not self._link.one_process:
            raise RequestError(
                f"{type(question).__name__} concerns one process; load the model there, instead of asking replicas"
            )
        if type(question) in self._link.known:
            return cast("T", self._link.known[type(question)])
        if not (self._link.runs or question.needs_a_worker):
            return cast("T", None)  # a new one remembers nothing
        require_elsewhere(self._link)
        answer = wait_for(self.begin(question))
        self._link.note(question)
        return answer

    def begin(
        self,
        message: Request[T] | Question[T],
        on_step: OnStep | None = None,
        place: AdmittedPlace | None = None,
    ) -> Handle[T]:
        """Send a message, and give the handle of its result."""
        number, calls = next(NUMBERS), self._link.calls
        request = message if isinstance(message, Request) else None
        handle = Handle[T](
            partial(self._cancel, number), on_step, place, request=request, number=number, server=self._link
        )
        call = call_of(message, handle, partial(calls.pop, number, None))
        with self._link.lock:
            self.check_open()
            calls[number] = call
            try:
                self._link.stream(call)
            except BaseException:
                call.leave()
                raise
        return handle

    def state(self) -> State:
        self.check_open()
        told = self._link.state(self.begin)
        if told is not None:
            return told
        calls = list(self._link.calls.values())
        requests = [call for call in calls if isinstance(call.message, Request)]
        running = [
            SlotState(busy=True, tokens=_prompt_length(call.message) + call.given)
            for call in requests
            if call.begun
        ]
        free = max(0, self._places.parallel - len(running)) if self.facts.generates else 0
        slots = (*running, *(SlotState(),) * free)
        return State(slots, len(requests) - len(running), self._link.totals)

    def close(self) -> None:
        with self._link.lock:
            self._closed_because = self._closed_because or ""
            lost = list(self._link.calls.values())
            self._link.calls.clear()
        told = "the model was closed, or nobody held it any longer, before the request was done"
        for call in lost:
            call.handle.fail(ClosedError(told))
        self._link.close()

    def after_fork(self, reason: str) -> None:
        """End all requests: this process is a forked child, and the model's processes belong to its parent."""
        self._closed_because = self._closed_because or reason
        lost = list(self._link.calls.values())
        self._link.lock = RLock()
        self._link.calls.clear()
        self._link.after_fork()
        for call in lost:
            call.handle.after_fork(ClosedError(f"the model is closed{self._closed_because}"))

    def _cancel(self, number: int) -> None:
        call = self._link.calls.get(number)
        if call is not None:
            call.cancelled = True  # first: a link looks at it after it has sent the call
            self._link.cancel(call)


def _sendable(request: Request[T], facts: ModelFacts, tokenizer: Tokenizer | None) -> Request[T]:
    """A request that can be pickled, and goes on elsewhere with the same choices; wrong options are refused here."""
    if not isinstance(request, Generate):
        return request
    prompt, options, sampling = request.prompt, request.options, request.options.sampling
    if options.response_format is not None:
        check_format(options.response_format)
    known = () if isinstance(prompt, PromptParts) else prompt
    check_generation(known, options, tokenizer, context=facts.context, vocabulary_size=facts.vocabulary_size)
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
    plain = replace(sampling, logit_bias=dict(sampling.logit_bias), seed=seed)
    return cast("Request[T]", replace(request, options=replace(options, sampling=plain)))


def _prompt_length(message: Message) -> int:
    prompt = cast("AnyRequest", message).prompt
    return 0 if isinstance(prompt, PromptParts) else len(prompt)
