"""The runner's loop: a thread that admits jobs, makes steps of them, and hands out results."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from threading import Condition, RLock, Thread
from time import monotonic, perf_counter
from typing import Any, TypeVar, final

from numpy.typing import NDArray

from backbay import BackbayError, CancelledError, ClosedError
from backbay.internals import InterruptSafeEvent, close_after_fork

from ..errors import DeadlineError, LogitsError, RequestError, as_exception
from ..media.processor_lock import ProcessorLock
from .requests.generation import GenerationJob
from .requests.handle import Receiver, require_elsewhere, serve_here, serves_here
from .requests.job import Job
from .requests.token_masks import MaskThread
from .scheduler import Scheduler, StepShare, fitting_tokens
from .slots import PrefixStore, Slots
from .speculation import Speculation
from .state import SlotState, State, Totals
from .step_maker import MediaCacheWriter, make_step
from .traced_steps import StepCache

log = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")


@final
class Runner:
    """Runs many jobs over one model, several in each step.

    turns        between steps and the encoder of pictures, which take the same processors
    showing      if text attends to pictures
    speculation  if tokens are guessed
    shelf        if beginnings of prompts outlive the cache
    """

    def __init__(
        self,
        step_cache: StepCache,
        slots: Slots,
        *,
        batch: int,
        context: int,
        turns: ProcessorLock | None = None,
        showing: MediaCacheWriter | None = None,
        speculation: Speculation | None = None,
        shelf: PrefixStore | None = None,
    ) -> None:
        self.step_cache, self.slots, self.context = step_cache, slots, context
        self._turns, self.showing, self.speculation, self.shelf = turns, showing, speculation, shelf
        self._scheduler = Scheduler(batch, slots.cache.is_uniform)
        self._waiting: deque[Job] = deque()
        self._tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._active: list[Job] = []
        self._in_step: list[Job] = []
        self._ahead = MaskThread(self)  # works while the backend computes a step
        self._prompt = self._reused = self._generated = 0  # tokens so far
        self._lock = RLock()  # Ctrl-C may leave a Condition locked that is entered itself
        self._changed = Condition(self._lock)
        self._cancel_step = InterruptSafeEvent()
        self._closing = False
        self._closed_because = ""
        self._after: Callable[[], None] = lambda: None  # what its own threads have left to do when they end
        self._thread: Thread | None = None
        close_after_fork(self)

    # -- from any thread ---------------------------------------------------------------------------------

    def submit(self, job: Job, handle: Receiver[Any]) -> None:
        """Queue a job, whose result goes to a handle; it runs as soon as a slot is free, unless it is over already."""
        job.handle = handle
        if not job.pending:
            raise RequestError("the prompt is empty")  # no step would ever serve it
        if job.over:
            job.end()
        else:
            self._put(self._waiting, job)

    def between(self, task: Callable[[], R]) -> Future[R]:
        require_elsewhere(self)
        future: Future[R] = Future()
        self._put(self._tasks, (future, task))
        return future

    def _put(self, queue: deque[T], item: T) -> None:
        """Queue work for the thread, which begins with the first of it."""
        with self._lock:
            if self._closing:
                raise self._closed()
            if self._thread is None:
                thread = Thread(target=self._run, name="backbay runner", daemon=True)
                thread.start()  # where no thread can start, nothing is queued
                self._thread = thread
            queue.append(item)
            self._changed.notify_all()

    def job_of(self, receiver: object) -> Job | None:
        """The job of a receiver; None if it is over. Only for tasks between steps."""
        return next((job for job in (*self._active, *self._waiting) if job.handle is receiver), None)

    def uses(self, adapter: str) -> bool:
        """Whether a job has the adapter of a fingerprint. Only for tasks between steps."""
        return any(adapter == each for job in (*self._active, *self._waiting) for each, _ in job.adapters)

    def cancel(self, job: Job) -> None:
        """End a job early; cancels the running step if no other job needs it."""
        with self._lock:
            job.cancelled = True
            if self._in_step and all(other.cancelled for other in self._in_step):
                self._cancel_step.set()
            self._changed.notify_all()

    def state(self) -> State:
        """What runs and waits at this moment. Takes no lock, and disturbs nobody."""
        slots = tuple(SlotState(slot.busy, len(slot.tokens)) for slot in self.slots.all)
        return State(slots, len(self._waiting), Totals(self._prompt, self._reused, self._generated))

    def forget(self) -> None:
        """Wait until no job runs, then empty all slots, which keep old prompts for reuse."""
        require_elsewhere(self)
        with self._lock:
            self._changed.wait_for(lambda: not (self._waiting or self._active))
            if self._closing:
                raise self._closed()
            for slot in self.slots.all:
                self.slots.clear(slot)

    def close(self, after: Callable[[], None] = lambda: None) -> None:
        """End all jobs with ClosedError, stop the thread, and then call `after`: at its end, if this is its own thread."""
        inside = serves_here(self)  # on_step, a constraint, or the garbage collector calls
        if inside:
            self._after = after
        with self._lock:
            self._closing = True
            if self._in_step:
                self._cancel_step.set()
            self._changed.notify_all()
        if inside:
            return
        if self._thread is not None:
            self._thread.join()
        after()

    def after_fork(self, reason: str) -> None:
        """End all jobs: this process is a forked child, and the thread that ran them is not in it."""
        lost, self._closing, self._thread = [*self._waiting, *self._active], True, None
        self._tasks.clear()
        self._closed_because = reason
        self._lock = RLock()
        self._changed, self._cancel_step = Condition(self._lock), InterruptSafeEvent()
        self._waiting.clear()
        self._active.clear()
        for job in lost:
            job.handle.after_fork(self._closed())

    def _closed(self) -> ClosedError:
        return ClosedError(f"the model is closed{self._closed_because}")

    # -- in its thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        serve_here(self)
        try:
            while self._wait():
                try:
                    self._cycle()
                except BaseException as error:  # end all jobs, so that no caller waits forever
                    log.exception("the runner failed")
                    for job in list(self._active):
                        self._end(job, error)
        except BaseException as error:
            self._closed_because = f": its thread ended with {type(error).__name__}"
            raise
        finally:
            self._stop()

    def _stop(self) -> None:
        """End whatever is left, as the thread ends: nobody may wait for it."""
        with self._lock:
            self._closing = True
            left = [*self._waiting, *self._active]
            self._waiting.clear()
            self._active.clear()
        self._ahead.close()
        for job in left:
            job.end(self._closed())
        self._do_tasks()
        with self._lock:
            self._changed.notify_all()  # wakes `forget`
        self._after()

    def _wait(self) -> bool:
        """Sleep until there is work; False when the thread is to stop."""
        if self._active:
            return True
        with self._lock:
            while not (self._waiting or self._tasks or self._closing):
                if self._turns is not None:
                    self._turns.answering(False)
                self._changed.notify_all()  # wakes `forget`
                self._changed.wait()
            if self._turns is not None:
                self._turns.answering(True)
            return bool(self._waiting or (self._tasks and not self._closing))

    def _cycle(self) -> None:
        # after a compute, Python's own memory is out of the core's caches: each function that is called takes 2 us
        if self._tasks:
            self._do_tasks()
        self._sweep()
        if self._waiting:
            self._admit()
        for job in list(self._active):
            self._make_room(job)
        shares = self._scheduler.split(self._active)
        if self.speculation is not None and self._scheduler.may_guess(self._active):
            shares = self.speculation.extended(shares, self.context, self._scheduler.room)
        if shares:
            self._step(shares)

    def _do_tasks(self) -> None:
        while self._tasks:
            future, task = self._tasks.popleft()
            try:
                if self._closing:
                    raise self._closed()
                future.set_result(task())
            except BaseException as error:  # noqa: BLE001  the caller gets it
                future.set_exception(as_exception(error))

    def _sweep(self) -> None:
        """End cancelled jobs; all jobs, if the model closes."""
        for job in [job for job in self._active if job.cancelled or self._closing]:
            self._end(job, self._why(job))
        if not self._waiting:
            return
        with self._lock:
            now = monotonic()
            gone = [job for job in self._waiting if job.cancelled or self._closing or job.begin_by <= now]
            for job in gone:
                self._waiting.remove(job)
        for job in gone:
            job.end(self._why(job))

    def _why(self, job: Job) -> BackbayError | None:
        """The error of a job that ends early; None if it was cancelled."""
        if job.cancelled:
            return None
        if not self._closing:
            return DeadlineError("the request had not begun by its deadline: all sequences were busy")
        return ClosedError("the model was closed, or nobody held it any longer, before the request was done")

    def _admit(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            if self.showing is not None and not self.showing.has_room(job, self._active):
                return
            try:
                slot = self.slots.take(job.prompt, reuse=job.reuse, adapters=job.adapters)
            except BaseException as error:  # noqa: BLE001  only this job gets it
                self._waiting.popleft()
                job.end(error)
                continue
            if slot is None:
                return
            self._active.append(job)
            self._waiting.popleft()  # now, so that `forget` always sees the job in a queue
            try:
                if self.shelf is not None and job.reuse and not job.adapters:
                    self.shelf.fetch(job.prompt, slot)
                job.start(slot)
            except BaseException as error:  # noqa: BLE001  only this job gets it
                job.slot = slot
                self._end(job, error)
                continue
            if job.over:
                self._end(job)
                continue
            if self.speculation is not None:
                self.speculation.begin(job)
            self._prompt += len(job.prompt)
            self._reused += job.done

    def _make_room(self, job: Job) -> None:
        """If the context is full, shift it or end the job."""
        if job.done + min(1, job.pending) <= self.context:
            return
        keep = job.make_room(self.context)
        if keep is None:
            self._end(job)
            return
        try:
            job.go_back(self.slots.shift(job.slot, keep))
        except BaseException as error:  # noqa: BLE001  only this job gets it
            self._end(job, error)

    def _step(self, shares: Sequence[StepShare]) -> None:
        """One forward pass; if it fails, compute each share alone, without guesses, so that only the faulty job gets the error."""
        jobs = [share.job for share in shares]
        with self._lock:
            self._cancel_step.clear()
            self._in_step = jobs
        try:
            step, rows_of = make_step(shares, self.step_cache.stack)
            # a backend may need a thread to watch for cancellation; steps of answers alone are too short for it
            guessed = 0 if self.speculation is None else sum(len(job.guess) + job.again for job in jobs)
            cancel = self._cancel_step if step.size > len(shares) + guessed else None
            with nullcontext() if self._turns is None else self._turns.step():
                if self.showing is not None:
                    for job in jobs:
                        self.showing.show(job, self.slots)
                for share in shares:
                    share.job.look_ahead(share.count, self._ahead)
                begun = perf_counter()
                results = self.step_cache.run(step, cancel)
            if self.speculation is not None:
                self.speculation.note(shares, begun, self.step_cache.rows)
        except CancelledError:
            for job in jobs:
                self._resume(job)
            return
        except BaseException as error:  # noqa: BLE001  the faulty job gets it
            if len(shares) == 1 and not jobs[0].guess:
                self._end(jobs[0], error)
            else:
                for job in jobs:
                    self._resume(job)
                    self._step([StepShare(job, fitting_tokens(job, self._scheduler.room))])
            return
        finally:
            self._in_step = []
        for share, rows in zip(shares, rows_of, strict=True):
            self._hand_out(share, results[rows])

    def _resume(self, job: Job) -> None:
        """After a failed step: take guesses back, and compute again the cells that a window dropped for it."""
        whole = self.slots.cache.can_resume(job.slot.sequence, job.done)
        lost = [] if whole else [*job.slot.tokens]
        if not whole:
            self.slots.clear(job.slot)
        job.go_back(lost)

    def _hand_out(self, share: StepShare, rows: NDArray[Any]) -> None:
        job = share.job
        job.move_on(share.count)
        if not len(rows):
            return
        made = job.made if isinstance(job, GenerationJob) else 0
        if self.shelf is not None and isinstance(job, GenerationJob) and not (made or job.adapters):
            self.shelf.keep(job.slot)
        try:
            refused = job.receive(rows)
        except BaseException as error:  # noqa: BLE001  only this job gets it
            self._end(job, self._located(share, error) if isinstance(error, LogitsError) else error)
            return
        if isinstance(job, GenerationJob):
            self._generated += job.made - made
            if refused:
                job.take_up(self.slots.take_back(job.slot, refused))
        if job.over:
            self._end(job)

    def _located(self, share: StepShare, error: LogitsError) -> LogitsError:
        """The error with the first layer that gives NaN, found by computing the share again."""
        job, tokens = share.job, share.job.slot.tokens
        lost = tokens[-share.count :]
        del tokens[-share.count :]
        job.go_back(lost)
        try:
            self.slots.cache.remove(job.slot.sequence, job.done)
            first = self.step_cache.first_broken(make_step([share], self.step_cache.stack)[0])
        except BackbayError:
            return error
        return LogitsError(f"{error}; the first that is not finite is {first}") if first else error

    def _end(self, job: Job, error: BaseException | None = None) -> None:
        try:
            if isinstance(error, LogitsError):
                self.step_cache.close()  # frees memory for wiping
                self.slots.clear(job.slot, wipe=True)
            elif error is not None:
                self.slots.clear(job.slot)
        except BaseException:
            job.slot.tokens.clear()
            log.warning("sequence %d could not be cleared", job.slot.sequence, exc_info=True)
        job.slot.busy = False  # its tokens stay, for prompts with the same prefix
        self._active.remove(job)  # last: `forget` must not clear the slot at the same time
        job.end(error)
