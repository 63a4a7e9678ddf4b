"""The sight of a model: its encoder, the store of rows, and the threads that prepare pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from os import cpu_count
from threading import TIMEOUT_MAX, Condition, RLock, Timer
from time import monotonic, perf_counter
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from backbay import BackendMemory, ClosedError
from backbay.internals import InterruptSafeEvent, close_after_fork
from backbay.plugin import Cancel

from ..encoders.contract import EncoderFamily, Modality
from ..errors import DeadlineError
from ..media.content_parts import Encoded, Media, modality_of
from ..media.encoder import MediaEncoder
from ..media.processor_lock import ProcessorLock
from ..media.prompt_tokenizer import PromptTokenizer
from ..media.prompts import PromptParts
from ..media.row_store import RowsLease, RowStore
from ..media.rows import PreparedMedia, Rows, values_by_content
from ..port.contract import MediaFacts
from ..runner.loop import Runner
from ..runner.requests.handle import Receiver
from ..runner.requests.job import Job, MediaRowMap
from ..runner.requests.request import AnyRequest, Generate
from ..steps.tokens import Token
from .job_maker import JobMaker

MOST_THREADS = 4


R = TypeVar("R", bound=Receiver[Any])


@final
@dataclass(eq=False)
class MediaRequest:
    """A request whose pictures are prepared or encoded; then it becomes a job of the runner.

    prepared    the request's pictures and rows, in their order; None where one is not prepared yet
    """

    request: AnyRequest
    parts: PromptParts
    jobs: JobMaker
    runner: Runner
    prepared: list[Encoded | None]
    handle: Receiver[Any] = field(init=False)
    begun: float = field(default_factory=perf_counter)
    tokens: list[Token] = field(default_factory=list)
    lease: RowsLease | None = None
    job: Job | None = None
    over: bool = False
    watch: Timer | None = None

    @property
    def begin_by(self) -> float:
        """The moment by which the request must begin; not every kind of request has one."""
        return self.request.begin_by if isinstance(self.request, Generate) else math.inf


@final
class MediaIntake:
    """Brings requests with pictures to the runner. Any thread may call any method.

    A pool of threads prepares pictures, the store's thread encodes them, and the runner gets a request once all its
    rows are there: the tokens of other requests go on meanwhile.
    """

    def __init__(
        self,
        encoders: Sequence[MediaEncoder],
        prompts: PromptTokenizer,
        budget: int,
        turns: ProcessorLock | None,
    ) -> None:
        self.encoders: dict[Modality, MediaEncoder] = {each.family.modality: each for each in encoders}
        self.prompts, self.turns = prompts, turns
        self.facts = tuple(
            MediaFacts(each.name, each.width, each.placeholder, each.marker, each.modality, each.framed)
            for each in self.families
        )
        self.store = RowStore(self._rows_of, budget, self.width)
        self._pool: ThreadPoolExecutor | None = None
        self._arrivals: list[MediaRequest] = []
        self._lock = RLock()  # Ctrl-C may leave a Condition locked that is entered itself
        self._changed = Condition(self._lock)
        self._closing = False
        self._lost = False  # in a forked child: locks may be held for ever, and the encoder is closed already
        close_after_fork(self)

    @property
    def families(self) -> list[EncoderFamily[Any]]:
        return [encoder.family for encoder in self.encoders.values()]

    @property
    def width(self) -> int:
        """The features of a row."""
        return self.families[0].width

    @property
    def span(self) -> int:
        """The longest run of rows that one step must hold."""
        return max(family.span for family in self.families)

    @property
    def crosses(self) -> bool:
        """Whether the rows go to cross attention."""
        return any(family.crosses for family in self.families)

    def memory(self) -> tuple[BackendMemory, BackendMemory | None]:
        """The memory of the first encoder, and of a second one."""
        first, *others = (encoder.memory() for encoder in self.encoders.values())
        return first, next(iter(others), None)

    # -- without a request -------------------------------------------------------------------------------

    def prepare(self, picture: Media) -> PreparedMedia:
        """The pixels of a picture, in the caller's thread."""
        family = self.encoders[modality_of(picture)].family
        if isinstance(picture, PreparedMedia):
            family.check_prepared(picture)
            return picture
        prepared: PreparedMedia = family.prepared(picture)
        return prepared

    def embed(self, picture: Media) -> NDArray[np.float32]:
        """The rows of a picture, (rows, width); waits for them."""
        prepared, there = self.prepare(picture), InterruptSafeEvent()
        errors: list[BaseException] = []

        def done(lease: RowsLease, error: BaseException | None) -> None:
            if error is not None:
                errors.append(error)
            there.set()

        lease = self.store.lease([prepared], done)
        try:
            there.wait()
            if errors:
                raise errors[0]
            return lease.of(prepared.content).copy()
        finally:
            lease.release()

    # -- requests ----------------------------------------------------------------------------------------

    def begin(
        self,
        request: AnyRequest,
        parts: PromptParts,
        jobs: JobMaker,
        runner: Runner,
        receiver: Callable[[Callable[[], None]], R],
    ) -> R:
        """Prepare and encode the pictures of a request; then it becomes a job, which goes to the runner."""
        pictures = parts.media
        jobs.require_room(len(pictures))
        arrival = MediaRequest(request, parts, jobs, runner, [None] * len(pictures))
        arrival.handle = handle = receiver(partial(self._cancel, arrival))
        with self._lock:
            if self._closing:
                raise ClosedError("the model is closed")
            if self._pool is None:
                threads = min(MOST_THREADS, cpu_count() or 1)
                self._pool = ThreadPoolExecutor(threads, thread_name_prefix="backbay pictures")
            self._arrivals.append(arrival)
            for place, picture in enumerate(pictures):
                prepare = partial(self._prepare_one, arrival, place, picture)
                self._pool.submit(self._guarded, arrival, prepare)
            self._watch(arrival)
        return handle

    @property
    def coming(self) -> int:
        """Requests on their way to the runner."""
        return len(self._arrivals)

    def wait_until_idle(self) -> None:
        """Wait until no request is on its way to the runner."""
        with self._lock:
            self._changed.wait_for(lambda: not self._arrivals)

    def close(self) -> None:
        """End all requests on their way with ClosedError, and free the rows and the encoder."""
        if self._lost:
            return
        with self._lock:
            self._closing = True
            lost = list(self._arrivals)
        for arrival in lost:
            self._end(arrival, ClosedError("the model was closed before the request was done"))
        self.store.close()
        if self._pool is not None:
            # The garbage collector may call close in any thread, these ones included: so nobody waits for them.
            self._pool.shutdown(wait=False, cancel_futures=True)
        for encoder in self.encoders.values():
            encoder.close()

    def after_fork(self, reason: str) -> None:
        """End all requests on their way: this process is a forked child, and the threads are not in it."""
        lost, self._arrivals, self._pool = self._arrivals, [], None
        self._lock = RLock()
        self._changed, self._closing, self._lost = Condition(self._lock), True, True
        if self.turns is not None:
            self.turns.after_fork()
        self.store.after_fork()
        for arrival in lost:
            if arrival.job is None:
                arrival.handle.after_fork(ClosedError(f"the model is closed{reason}"))

    def _rows_of(self, prepared: Sequence[Any], cancel: Cancel) -> list[NDArray[np.float32]]:
        """The rows of each, by the encoder of its modality."""
        turn = nullcontext if self.turns is None else self.turns.part
        found: dict[int, NDArray[np.float32]] = {}
        for modality, encoder in self.encoders.items():
            numbers = [n for n, each in enumerate(prepared) if modality_of(each) == modality]
            rows = encoder.embed([prepared[n] for n in numbers], cancel, turn) if numbers else []
            found.update(zip(numbers, rows, strict=True))
        return [found[n] for n in range(len(prepared))]

    # -- in the threads of the pool and of the store -----------------------------------------------------

    def _guarded(self, arrival: MediaRequest, work: Callable[[], None]) -> None:
        """Do a part of a request's work; an error ends the request."""
        if arrival.over:
            return
        try:
            self._require_time(arrival)
            work()
            self._require_time(arrival)
        except BaseException as error:  # noqa: BLE001  the request gets it
            self._end(arrival, error)

    def _require_time(self, arrival: MediaRequest) -> None:
        """DeadlineError if the request should have begun by now."""
        if arrival.job is None and arrival.begin_by <= monotonic():
            raise DeadlineError(
                "the request had not begun by its deadline: its pictures or sounds were not ready"
            )

    def _watch(self, arrival: MediaRequest) -> None:
        """End a request at its deadline, even while one of its pictures is prepared or encoded."""
        left = arrival.begin_by - monotonic()
        if left < TIMEOUT_MAX:
            arrival.watch = Timer(max(left, 0), self._guarded, (arrival, lambda: None))
            arrival.watch.daemon = True
            arrival.watch.start()

    def _prepare_one(self, arrival: MediaRequest, place: int, picture: Media) -> None:
        prepared = picture if isinstance(picture, Rows) else self.prepare(picture)
        with self._lock:
            arrival.prepared[place] = prepared
            ready = all(each is not None for each in arrival.prepared)
            known = sum(1 if each is None else self._least(each) for each in arrival.prepared)
        arrival.jobs.require_room(known)  # before more are prepared
        if ready:
            self._arrange(arrival)

    def _least(self, given: Encoded) -> int:
        """The fewest tokens that a picture or rows have in a prompt."""
        in_text = isinstance(given, Rows) and given.of is None
        return max(1, given.tokens) if in_text or not self.crosses else 1

    def _arrange(self, arrival: MediaRequest) -> None:
        """Place the prepared pictures in the text, and ask for their rows."""
        encoded = self.prompts.beside([each for each in arrival.prepared if each is not None])
        arrival.tokens = self.prompts.tokens(arrival.parts, encoded)
        arrival.jobs.check_pictures(arrival.tokens)  # before anything is encoded
        arrival.jobs.check(arrival.request, arrival.tokens)
        arrival.prepared.clear()
        pictures = [picture for picture in encoded if not isinstance(picture, Rows)]
        lease = self.store.lease(pictures, partial(self._encoded, arrival))
        with self._lock:
            arrival.lease = lease
            over = arrival.over
        if over:
            lease.release()

    def _encoded(self, arrival: MediaRequest, lease: RowsLease, error: BaseException | None) -> None:
        if error is not None:
            self._end(arrival, error)
        else:
            self._guarded(arrival, partial(self._submit, arrival, lease))

    def _submit(self, arrival: MediaRequest, lease: RowsLease) -> None:
        own = values_by_content(arrival.parts.own_rows, self.width)
        job = arrival.jobs.make(arrival.request, arrival.tokens, MediaRowMap(own, lease))
        job.arrived(perf_counter() - arrival.begun)
        with self._lock:
            if arrival.over:
                lease.release()
                return
            arrival.runner.submit(job, arrival.handle)
            arrival.job = job
            self._leave(arrival)

    def _cancel(self, arrival: MediaRequest) -> None:
        with self._lock:
            job = arrival.job
        if job is not None:
            arrival.runner.cancel(job)
        else:
            self._end(arrival, None)

    def _end(self, arrival: MediaRequest, error: BaseException | None) -> None:
        """End a request that the runner has not got: with an error, or as cancelled."""
        with self._lock:
            if arrival.over or arrival.job is not None:
                return
            arrival.over = True
            self._leave(arrival)
            lease = arrival.lease
        if lease is not None:
            lease.release()
        arrival.jobs.end(arrival.request, arrival.handle, error)

    def _leave(self, arrival: MediaRequest) -> None:
        if arrival.watch is not None:
            arrival.watch.cancel()
        self._arrivals.remove(arrival)
        self._changed.notify_all()
