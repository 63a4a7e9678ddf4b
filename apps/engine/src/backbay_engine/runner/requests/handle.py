"""Handles: what a caller holds of a request, and through which its answer comes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from numbers import Real
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX, RLock, local
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast, final
from weakref import WeakSet

from backbay import BackendUnavailableError, OptionError
from backbay.internals import InterruptSafeEvent, raise_if_starved

from ...errors import RequestError, as_exception
from .answer import TokenStep
from .request import Request

log = logging.getLogger(__name__)

OnStep: TypeAlias = Callable[[Any], object]
"""Takes each TokenStep of a request, then its result, or its error."""
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class _Here(local):
    """What goes on in the present thread."""

    def __init__(self) -> None:
        self.servers = WeakSet[Any]()


_HERE = _Here()


def serve_here(server: object) -> None:
    """Let this thread be one in which a server's requests go on."""
    _HERE.servers.add(server)


def serves_here(server: object) -> bool:
    """Whether a server's requests go on in this thread."""
    return server is not None and server in _HERE.servers


def require_elsewhere(server: object) -> None:
    """RequestError if a server's requests go on in this thread: waiting for them would last for ever."""
    if serves_here(server):
        raise RequestError(
            "on_step and constraints run in the engine's own thread, which cannot wait for itself: hand the work to "
            "another thread"
        )


class AdmittedPlace(Protocol):
    """A request's place among those that a model takes at once."""

    def leave(self) -> None: ...


class Receiver(Protocol[T_contra]):
    """Takes what a request gives: steps, then the result or an error."""

    def emit(self, step: TokenStep, /) -> None: ...
    def succeed(self, result: T_contra, /) -> None: ...
    def fail(self, error: BaseException, /) -> None: ...
    def after_fork(self, error: BaseException, /) -> None:
        """Fail, in a forked child: a lost thread may hold any lock."""


@final
class Handle(Generic[T]):
    """A submitted request: iterate over its text or its steps as they come, or wait for its result.

    request, number  what was asked, and the port's number for it
    server           what the request goes on in, as `serve_here` has it
    """

    def __init__(
        self,
        cancel: Callable[[], None],
        on_step: OnStep | None = None,
        place: AdmittedPlace | None = None,
        *,
        request: Request[T] | None = None,
        number: int = 0,
        server: object = None,
    ) -> None:
        self._cancel, self._on_step, self._place = cancel, on_step, place
        self.request, self.number, self._server = request, number, server
        self._steps: SimpleQueue[TokenStep | None] = SimpleQueue()
        self._lock = RLock()  # a request may be ended by one thread while another hands it a step
        self._ended = False
        self._over = InterruptSafeEvent()
        self._result: T | None = None
        self._error: BaseException | None = None  # once the request is over, an Exception

    @property
    def done(self) -> bool:
        return self._over.is_set()

    def cancel(self) -> None:
        """End the request early; its result is the answer so far. Does nothing if the request is over."""
        if not self.done:
            self._leave()
            self._cancel()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result; raises the request's error, or TimeoutError if it takes more than `timeout` seconds."""
        if not self.done:
            require_elsewhere(self._server)
        if not self._over.wait(_seconds(timeout)):
            raise TimeoutError(f"no result in {timeout} s; the request goes on")
        if self._error is not None:
            raise self._error
        return cast("T", self._result)

    def steps(self) -> Iterator[TokenStep]:
        """The steps as they come; raises the request's error. Each step is given once, here or as text."""
        while (step := self._next_step()) is not None:
            yield step
        self._steps.put(None)  # iterating again ends at once
        if self._error is not None:
            raise self._error

    def _next_step(self) -> TokenStep | None:
        with suppress(Empty):
            return self._steps.get_nowait()
        require_elsewhere(self._server)
        return self._steps.get()

    def __iter__(self) -> Iterator[str]:
        return (step.text for step in self.steps() if step.text)

    def emit(self, step: TokenStep) -> None:
        with self._lock:
            if not self._ended:
                self._steps.put(step)
                if self._on_step is not None:
                    self._tell(step)

    def succeed(self, result: T) -> None:
        self._end(result, None)

    def after_fork(self, error: BaseException) -> None:
        """Fail, in a forked child: locks may be held by lost threads, and `on_step` is the parent's."""
        self._steps, self._over, self._lock = SimpleQueue(), InterruptSafeEvent(), RLock()
        self._on_step, self._ended = None, False
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        try:
            raise_if_starved(error, "a request")
            self._end(None, error)
        except BackendUnavailableError as starved:
            self._end(None, starved)

    def _end(self, result: T | None, error: BaseException | None) -> None:
        """Take the result or the error; the first end counts."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._leave()  # before anybody learns of the end, and asks again
            failure = self._error or error
            self._result, self._error = result, None if failure is None else as_exception(failure)
            self._tell(self._result if self._error is None else self._error)
            self._on_step = None  # it may hold whatever waits for the answer
            self._steps.put(None)
            self._over.set()

    def _leave(self) -> None:
        if self._place is not None:
            self._place.leave()

    def _tell(self, what: object) -> None:
        """Call `on_step`; an error of its own is the request's, which then ends early."""
        if self._on_step is None:
            return
        try:
            self._on_step(what)
        except BaseException as error:  # the thread that calls serves other requests, too
            self._on_step = None
            if self._ended:
                log.exception("on_step failed at the end of its request")
            else:
                self._error = error
                self.cancel()


def wait_for(handle: Handle[T]) -> T:
    """The result; an interruption of the waiting, such as Ctrl+C, cancels the request."""
    try:
        return handle.result()
    finally:
        handle.cancel()


def _seconds(timeout: object) -> float | None:
    """A time limit as Python's locks take it; None for none."""
    if timeout is None:
        return None
    if not isinstance(timeout, Real) or math.isnan(timeout):
        raise OptionError(f"timeout must be a number of seconds or None, got {timeout!r}")
    return min(float(timeout), TIMEOUT_MAX)


@final
class AnswerPieces(Iterator[T]):
    """What a request gives, piece by piece.

    Whoever holds them keeps the model open; the request ends when nobody does.
    """

    def __init__(self, handle: Handle[Any], pieces: Iterator[T], model: object) -> None:
        self._handle, self._pieces, self._model = handle, pieces, model

    def __next__(self) -> T:
        try:
            return next(self._pieces)
        except BaseException:  # Ctrl+C too, which interrupts the waiting
            self.close()
            raise

    def close(self) -> None:
        """Cancel the request, unless it is over; nothing more comes."""
        self._handle.cancel()
        self._pieces = iter(())

    def __del__(self) -> None:
        self.close()
