"""The link to a worker: a process of its own, which is started when there are calls and none lives."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

import backbay
from backbay import BackendUnavailableError, ModelFileError, OptionError
from backbay.discovery import open_model
from backbay.internals import require_cancel
from backbay.plugin import Cancel, Progress

from ..arguments import whole_number
from ..port.contract import ModelFacts
from ..port.options import BackendName, LoadOptions, Path
from ..port.questions import AddAdapter, GetState, Question, RemoveAdapter
from ..port.remote import ProcessLink
from ..port.remote_calls import RemoteCall
from ..runner.requests.answer import TokenStep
from ..runner.requests.handle import Handle
from ..runner.requests.request import Generate
from ..runner.state import State
from ..text.tokenizers import Tokenizer
from .frames import Frame, FrameKind
from .process import WorkerProcess
from .reports import log_levels, unpack_error
from .setup_messages import (
    ModelDescription,
    WorkerSetup,
    import_place,
    map_options,
    require_sendable,
    sendable_option,
    working_folder,
)

log = logging.getLogger(__name__)

ATTEMPTS = 2  # workers that a call is sent to, if the first one dies without having begun with it
LOADING = 120.0  # seconds that a worker may be silent: libraries hold Python's lock while they load
ANSWERING = 30.0
STOPPING = 5.0
LOOKING = 0.5  # seconds for a worker to tell its state; then its last known state is given
POLL = 0.02  # seconds between two looks at the flag that cancels a load
News: TypeAlias = ModelDescription | float | BaseException | None
"""What comes of a load: the facts, its progress, or its error; None at the end."""


@final
class WorkerLink(ProcessLink):
    """Sends calls to a worker, as frames over two pipes.

    retries  how often a request for text goes on in the next worker; other calls fail with the worker that begins them
    """

    one_process = True

    def __init__(self, path: Path, backend: BackendName | None, options: LoadOptions, retries: int) -> None:
        super().__init__()
        self._retries = whole_number("retries", retries, 0)
        open_model(path).close()  # refuses a wrong file before backends are tried, which takes longer
        # Chosen here: each worker would try all installed backends anew.
        chosen = import_place(backend) if isinstance(backend, type) else backbay.choose(backend).name
        sent = map_options(replace(options, queue=None), sendable_option)  # requests wait here
        self._setup = WorkerSetup(sendable_option(path), chosen, sent, log_levels())
        require_sendable(self._setup)
        self._folder = working_folder()
        self._worker: WorkerProcess | None = None
        self._news = SimpleQueue[News]()
        self._facts: ModelFacts | None = None  # once the first worker has loaded the model
        self._stops_loading = self._closed = False
        self._state = State()
        self._arrays: dict[int, tuple[NDArray[Any], int]] = {}  # results of which so many bytes have come

    @property
    def pid(self) -> int | None:
        worker = self._worker
        return None if worker is None else worker.pid

    @property
    def runs(self) -> bool:
        return self._worker is not None

    # -- from any thread ---------------------------------------------------------------------------------

    def open(self, progress: Progress | None, cancel: Cancel | None) -> tuple[ModelFacts, Tokenizer | None]:
        """Start the worker and wait until it has loaded the model."""
        require_cancel(cancel)
        if progress is not None and not callable(progress):
            raise OptionError(f"progress must be a function of one number, got {progress!r}")
        with self.lock:
            worker = self._start()
        description = self._wait(worker, progress, cancel)
        self._facts, self._stops_loading = description.facts, False
        return description.facts, description.tokenizer(self._setup.path)

    def _wait(
        self, worker: WorkerProcess, progress: Progress | None, cancel: Cancel | None
    ) -> ModelDescription:
        description: ModelDescription | None = None
        while True:
            if cancel is not None and not self._stops_loading and cancel.is_set():
                worker.send(FrameKind.STOP_LOADING)
                self._stops_loading = True
            try:
                news = self._news.get(timeout=None if cancel is None or self._stops_loading else POLL)
            except Empty:
                continue
            if isinstance(news, BaseException):
                raise news
            if isinstance(news, ModelDescription):
                description = news
            elif news is not None:
                if progress is not None:
                    progress(news)
            else:
                assert description is not None  # it comes first
                return description

    def stream(self, call: RemoteCall) -> None:
        worker = self._worker or self._start()
        try:
            if worker.ready:
                _give(worker, call)
            else:
                pickle.dumps(call.message)  # so that its caller learns of an error
        except Exception as error:
            told = f"the options of a request to a model with a worker must be picklable: {error}"
            raise OptionError(told) from error

    def cancel(self, call: RemoteCall) -> None:
        worker = self._worker
        if worker is not None:
            worker.send(FrameKind.CANCEL, call.handle.number)

    def state(self, ask: Callable[[Question[State]], Handle[State]]) -> State | None:
        worker, told = self._worker, None
        if worker is not None and worker.ready:
            with suppress(TimeoutError, BackendUnavailableError):
                told = ask(GetState()).result(LOOKING)
        with self.lock:
            if worker is None or worker is not self._worker or not worker.ready:
                return None
            if told is not None:
                self._state = told
            return replace(self._state, totals=self.totals + self._state.totals)

    def note(self, question: Question[Any]) -> None:
        """Let later workers have the adapters that this one has now."""
        if not isinstance(question, AddAdapter | RemoveAdapter):
            return
        with self.lock:
            options = self._setup.options
            adapters = {name: path for name, path in options.adapters.items() if name != question.name}
            if isinstance(question, AddAdapter):
                adapters[question.name] = sendable_option(question.path)
            self._setup = replace(self._setup, options=replace(options, adapters=adapters))

    def close(self) -> None:
        with self.lock:
            self._closed, worker = True, self._worker
        if worker is not None:
            worker.end()

    def after_fork(self) -> None:
        worker, self._worker, self._closed = self._worker, None, True
        if worker is not None:
            worker.after_fork()

    def _start(self) -> WorkerProcess:
        """Start a worker; the caller holds the lock."""
        setup = replace(self._setup, levels=log_levels(), with_vocabulary=self._facts is None)
        try:
            self._worker = WorkerProcess(setup, self._folder, self)
        except RuntimeError as error:  # no more threads
            raise BackendUnavailableError(f"the model's worker could not be started: {error}") from error
        return self._worker

    # -- in the worker's thread --------------------------------------------------------------------------

    def take(self, worker: WorkerProcess, frame: Frame) -> None:
        """Take what the worker says."""
        call = self.calls.get(frame.number)
        if call is not None:
            try:
                self._take_part(call, frame)
            except Exception as error:  # noqa: BLE001  such as no memory for a large result
                call.fail(error)
        elif frame.kind is FrameKind.READY:
            with self.lock:
                worker.ready = True
                refused = [
                    (waiting, why)
                    for waiting in list(self.calls.values())
                    if (why := _refusal(worker, waiting)) is not None
                ]
            for waiting, why in refused:
                waiting.fail(why)
            self._tell(None)
        elif frame.kind is FrameKind.OPENED:
            description: ModelDescription = pickle.loads(frame.payload)  # noqa: S301  our own worker wrote it
            self._tell(description)
            if self._facts is not None and description.facts != self._facts:
                expected = f"the model that was loaded first, {self._facts}"
                worker.refusal = partial(ModelFileError, self._setup.path, None, expected, description.facts)
                worker.kill()
        elif frame.kind is FrameKind.PROGRESS:
            self._tell(pickle.loads(frame.payload))  # noqa: S301
        elif frame.kind is FrameKind.REFUSED:
            worker.refusal = partial(unpack_error, frame.payload)

    def _take_part(self, call: RemoteCall, frame: Frame) -> None:
        """Take a part of an answer."""
        number, payload = frame.number, frame.payload
        if frame.kind is FrameKind.BEGUN:
            call.begun = True
        elif frame.kind is FrameKind.STEP:
            call.take(TokenStep(*pickle.loads(payload)))  # noqa: S301
        elif frame.kind is FrameKind.RESULT:
            call.take(pickle.loads(payload))  # noqa: S301
        elif frame.kind is FrameKind.FAILED:
            self._arrays.pop(number, None)
            call.fail(unpack_error(payload))
        else:
            if frame.kind is FrameKind.ARRAY:
                shape, dtype = pickle.loads(payload)  # noqa: S301
                array, filled = np.empty(shape, dtype), 0
            else:
                array, begin = self._arrays.pop(number)
                filled = begin + len(payload)
                array.reshape(-1).view(np.uint8)[begin:filled] = np.frombuffer(payload, np.uint8)
            if filled < array.nbytes:
                self._arrays[number] = array, filled
            else:
                call.take(array)

    def _tell(self, news: News) -> None:
        """Tell the caller of `open`, if the first worker loads."""
        if self._facts is None:
            self._news.put(news)

    def ended(self, worker: WorkerProcess, reason: str) -> None:
        """The worker's process is over: its calls fail, but those that go on get another worker."""
        told = f"the model's worker (process {worker.pid}) {reason}"
        with self.lock:
            self._worker = None
            self._state, self.totals = State(), self.totals + self._state.totals
            self._arrays.clear()
            if self._closed:
                return
            ends = worker.refusal is not None  # no worker will load the model
            lost = [call for call in list(self.calls.values()) if ends or not self._survives(call, worker)]
            for call in lost:
                call.leave()
        for call in lost:  # without the lock, as `on_step` is the caller's
            call.fail(worker.why_not(told))
        if not worker.ready:
            self._tell(worker.why_not(told))
        elif not lost:  # otherwise the calls tell of it
            log.warning("%s", told)
        self._start_if_needed()

    def _survives(self, call: RemoteCall, worker: WorkerProcess) -> bool:
        """Whether a call goes on in another worker."""
        if worker.ready and not call.begun:
            return call.sent - call.losses < ATTEMPTS
        call.losses += 1
        call.begun = False  # by the next worker
        return isinstance(call.message, Generate) and call.losses <= self._retries

    def _start_if_needed(self) -> None:
        with self.lock:
            if self._worker is not None or not self.calls:
                return
            try:
                self._start()
            except BackendUnavailableError as error:
                why, failed = error, list(self.calls.values())
                self.calls.clear()
            else:
                return
        for call in failed:
            call.fail(why)

    def patience(self, worker: WorkerProcess) -> float | None:
        """The seconds that a worker may be silent: fewer if all that it does is to be stopped, none if it does nothing."""
        calls, now = list(self.calls.values()), monotonic()
        for call in calls:
            call.end_late(now)
        if not worker.ready:
            return STOPPING if self._stops_loading else LOADING
        running = [call.cancelled for call in calls if not call.handle.done]
        if not running:
            return None
        return STOPPING if all(running) else ANSWERING


def _refusal(worker: WorkerProcess, call: RemoteCall) -> Exception | None:
    """Send a call that has waited; give the error if it cannot be sent any more, such as for lack of memory."""
    try:
        _give(worker, call)
    except Exception as error:  # noqa: BLE001  the call's alone
        return error
    return None


def _give(worker: WorkerProcess, call: RemoteCall) -> None:
    """Send a call to a worker that is ready; the caller holds the lock."""
    worker.send(FrameKind.REQUEST, call.handle.number, pickle.dumps(call.send()))
    if call.cancelled:
        worker.send(FrameKind.CANCEL, call.handle.number)
