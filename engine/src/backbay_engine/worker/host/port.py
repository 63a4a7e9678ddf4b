"""The port of a model in a process of its own, seen from the host."""

from __future__ import annotations

import logging
import math
import pickle
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import RLock
from time import monotonic
from typing import Any, TypeVar, cast, final

import backbay
from backbay import (
    BackendUnavailableError,
    ClosedError,
    ModelFileError,
    OptionError,
)
from backbay.discovery import open_model
from backbay.internals import close_after_fork, require_cancel
from backbay.plugin import Cancel, Progress

from ...arguments import whole
from ...errors import DeadlineError
from ...port.contract import Port
from ...port.options import BackendName, LoadOptions, Path
from ...port.places import Place, Places
from ...port.questions import GetState, Question
from ...runner.requests.handle import Handle, OnStep, wait_for
from ...runner.requests.request import NUMBERS, Generate, Request
from ...runner.state import SlotState, State, Totals
from ..wire import log_records
from ..wire.failures import unpacked
from ..wire.frames import Frame, Kind
from ..wire.opened import Opened
from ..wire.setup import (
    Setup,
    each_option,
    importable,
    plain,
    require_sendable,
    working_folder,
)
from .asked import Asked, give
from .loading import Loading
from .process import WorkerProcess
from .requests import sendable
from .resuming import Resuming

log = logging.getLogger(__name__)
T = TypeVar("T")

LOADING = 120.0  # seconds that a worker may be silent: libraries hold Python's lock while they load
ANSWERING = 30.0
STOPPING = 5.0
LOOKING = 0.5  # seconds for a worker to tell its state; then its last known state is given


@final
class WorkerPort(Port):
    """Hands requests to a worker, and starts one when there are requests and none lives."""

    def __init__(
        self,
        path: Path,
        backend: BackendName | None,
        options: LoadOptions,
        *,
        retries: int = 0,
    ) -> None:
        self._retries = whole("retries", retries, 0)
        open_model(path).close()  # refuses a wrong file before backends are tried, which takes longer
        # Chosen here: each worker would try all installed backends anew.
        chosen = importable(backend) if isinstance(backend, type) else backbay.choose(backend).name
        self._places = Places(options.parallel, options.queue)
        sent = each_option(replace(options, queue=None), plain)  # requests wait here
        self._setup = Setup(plain(path), chosen, sent, log_records.levels())
        require_sendable(self._setup)
        self._folder = working_folder()
        self._lock = RLock()  # the garbage collector may close in the thread that holds it
        self._asked: dict[int, Asked] = {}
        self._worker: WorkerProcess | None = None
        self._loading = Loading()
        self._seen, self._ended_totals = State(), Totals()
        self._closed = False
        self._closed_because = ""
        close_after_fork(self)

    @property
    def pid(self) -> int | None:
        """The id of the worker's process; None if none lives."""
        worker = self._worker
        return None if worker is None else worker.pid

    # -- from any thread ---------------------------------------------------------------------------------

    def load(self, progress: Progress | None = None, cancel: Cancel | None = None) -> None:
        """Start the worker and wait until it has loaded the model; if that fails, close."""
        require_cancel(cancel)
        if progress is not None and not callable(progress):
            raise OptionError(f"progress must be a function of one number, got {progress!r}")
        try:
            with self._lock:
                worker = self._start()
            opened = self._loading.wait(worker, progress, cancel)
            self.facts, self.tokenizer = opened.facts, opened.tokenizer(self._setup.path)
        except BaseException:
            self.close()
            raise

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the model is closed{self._closed_because}")

    def submit(self, request: Request[T], on_step: OnStep | None = None) -> Handle[T]:
        sent = sendable(request, self.facts, self.tokenizer)
        resuming = None
        if isinstance(sent, Generate) and self._retries:
            resuming = Resuming(sent, self._retries)
        with self._places.taken() as place:
            return self._ask(sent, on_step, place, resuming)

    def ask(self, question: Question[T]) -> T:
        self.check_open()
        if not question.needs_a_worker and self._worker is None:
            return cast("T", None)  # a new one remembers nothing
        handle: Handle[T] = self._ask(question)
        return wait_for(handle)

    def state(self) -> State:
        self.check_open()
        worker, seen = self._worker, None
        if worker is not None and worker.ready:
            with suppress(TimeoutError, BackendUnavailableError):
                seen = self._ask(GetState()).result(LOOKING)
        with self._lock:
            if worker is None or worker is not self._worker or not worker.ready:
                free = (SlotState(),) * self._places.parallel if self.facts.generates else ()
                return State(free, self._places.held, self._ended_totals)
            if seen is not None:
                self._seen = seen
            return replace(self._seen, totals=self._ended_totals + self._seen.totals)

    def close(self) -> None:
        with self._lock:
            self._closed, worker = True, self._worker
            lost = list(self._asked.values())
            self._asked.clear()
        for asked in lost:
            asked.handle.fail(
                ClosedError("the model was closed, or nobody held it any longer, before the request was done")
            )
        if worker is not None:
            worker.end()

    def after_fork(self, reason: str) -> None:
        """End all requests: this process is a forked child, and the worker belongs to its parent."""
        lost, worker, self._worker = list(self._asked.values()), self._worker, None
        self._lock, self._closed = RLock(), True
        self._closed_because = self._closed_because or reason
        self._asked.clear()
        if worker is not None:
            worker.after_fork()
        for asked in lost:
            asked.handle.after_fork(ClosedError(f"the model is closed{self._closed_because}"))

    def _ask(
        self,
        asked: Request[Any] | Question[Any],
        on_step: OnStep | None = None,
        place: Place | None = None,
        resuming: Resuming | None = None,
    ) -> Handle[Any]:
        number = next(NUMBERS)
        sent = asked if resuming is None else resuming.request
        request = sent if isinstance(sent, Request) else None
        handle = Handle[Any](partial(self._cancel, number), on_step, place, request=request, number=number)
        try:
            payload = pickle.dumps(sent)
        except Exception as error:
            told = f"the options of a request to a model with a worker must be picklable: {error}"
            raise OptionError(told) from error
        begin_by = sent.begin_by if isinstance(sent, Generate) else math.inf
        waiting = Asked(payload, handle, begin_by=begin_by, resuming=resuming)
        with self._lock:
            self.check_open()
            worker = self._worker or self._start()
            self._asked[number] = waiting
            if worker.ready:
                give(worker, number, waiting)
        return handle

    def _cancel(self, number: int) -> None:
        asked = self._asked.get(number)
        if asked is not None:
            asked.cancelled = True  # first: `give` looks at it after it has set the worker
            if asked.worker is not None:
                asked.worker.send(Kind.CANCEL, number)

    def _start(self) -> WorkerProcess:
        """Start a worker; the caller holds the lock."""
        setup = replace(self._setup, levels=log_records.levels(), with_vocabulary=not self._loading.over)
        try:
            self._worker = WorkerProcess(setup, self._folder, self)
        except RuntimeError as error:  # no more threads
            raise BackendUnavailableError(f"the model's worker could not be started: {error}") from error
        return self._worker

    # -- in the worker's thread --------------------------------------------------------------------------

    def take(self, worker: WorkerProcess, frame: Frame) -> None:
        """Take what the worker says."""
        asked = self._asked.get(frame.number)
        if asked is not None:
            try:
                asked.take(frame, partial(self._over, frame.number))
            except Exception as error:  # noqa: BLE001  such as no memory for a large result
                self._over(frame.number)
                asked.handle.fail(error)
        elif frame.kind is Kind.READY:
            with self._lock:
                worker.ready = True
                for number, waiting in self._asked.items():
                    give(worker, number, waiting)
            self._loading.tell(None)
        elif frame.kind is Kind.OPENED:
            self._take_facts(worker, pickle.loads(frame.payload))  # noqa: S301  our own worker wrote it
        elif frame.kind is Kind.PROGRESS:
            self._loading.tell(pickle.loads(frame.payload))  # noqa: S301
        elif frame.kind is Kind.REFUSED:
            worker.refusal = partial(unpacked, frame.payload)

    def ended(self, worker: WorkerProcess, reason: str) -> None:
        """The worker's process is over: its requests fail, but what it never began goes to another worker."""
        told = f"the model's worker (process {worker.pid}) {reason}"
        with self._lock:
            self._worker = None
            self._seen, self._ended_totals = State(), self._ended_totals + self._seen.totals
            if self._closed:
                return
            ends = worker.refusal is not None  # no worker will load the model
            asked_now = self._asked.items()
            lost = [number for number, one in asked_now if ends or not one.survives(loaded=worker.ready)]
            failed = [self._asked.pop(number).handle for number in lost]
            for asked in self._asked.values():
                asked.worker = None
        for handle in failed:
            handle.fail(worker.why_not(told))
        if not worker.ready:
            self._loading.tell(worker.why_not(told))
        elif not failed:  # otherwise the requests tell of it
            log.warning("%s", told)
        self._start_if_needed()

    def patience(self, worker: WorkerProcess) -> float | None:
        """The seconds that a worker may be silent: fewer if all that it does is to be stopped, none if it does nothing."""
        self._end_late()
        if not worker.ready:
            return STOPPING if self._loading.stops else LOADING
        with self._lock:
            running = [asked.cancelled for asked in self._asked.values()]
        if not running:
            return None
        return STOPPING if all(running) else ANSWERING

    def _end_late(self) -> None:
        """End the requests that no worker has begun by their deadlines: it loads, or stands still."""
        now = monotonic()
        with self._lock:
            waiting = [(number, asked) for number, asked in self._asked.items() if not asked.begun]
            late = [number for number, asked in waiting if asked.begin_by <= now]
            handles = [self._asked.pop(number).handle for number in late]
        for handle in handles:
            handle.fail(DeadlineError("the request had not begun by its deadline: the worker was not ready"))

    def _start_if_needed(self) -> None:
        with self._lock:
            if self._worker is not None or not self._asked:
                return
            try:
                self._start()
            except BackendUnavailableError as error:
                failing = [partial(asked.handle.fail, error) for asked in self._asked.values()]
                self._asked.clear()
            else:
                return
        for fail in failing:  # without the lock, as `on_step` is the caller's
            fail()

    def _take_facts(self, worker: WorkerProcess, opened: Opened) -> None:
        if not self._loading.over:
            self._loading.tell(opened)
        elif opened.facts != self.facts:
            expected = f"the model that was loaded first, {self.facts}"
            worker.refusal = partial(ModelFileError, self._setup.path, None, expected, opened.facts)
            worker.kill()

    def _over(self, number: int) -> None:
        with self._lock:
            self._asked.pop(number, None)
