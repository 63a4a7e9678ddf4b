"""The runner's loop: a thread that admits jobs, makes steps of them, and hands out results."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from threading import Condition, RLock, Thread, current_thread
from time import monotonic, perf_counter
from typing import Any, TypeVar, final

from numpy.typing import NDArray

from backbay import BackbayError, CancelledError, ClosedError
from backbay.internals import Flag, close_after_fork

from ..errors import DeadlineError, LogitsError, RequestError
from ..images.turns import Turns
from .ahead import Ahead
from .requests.job import Job
from .scheduler import Scheduler, Share, fitting
from .showing import Showing
from .slots import Shelf, Slots
from .speculation import Speculation
from .state import SlotState, State, Totals
from .step_cache import StepCache
from .step_making import make_step

log = logging.getLogger(__name__)

R = TypeVar("R")
ALONE: AbstractContextManager[None] = nullcontext()  # no encoder of pictures takes turns with the steps


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
        turns: Turns | None = None,
        showing: Showing | None = None,
        speculation: Speculation | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self.step_cache, self.slots, self.context = step_cache, slots, context
        self._turns, self.showing, self.speculation, self.shelf = turns, showing, speculation, shelf
        self._scheduler = Scheduler(batch, slots.cache.is_uniform)
        self._waiting: deque[Job] = deque()
        self._tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._active: list[Job] = []
        self._in_step: list[Job] = []
        self._ahead = Ahead()
        self._prompt = self._reused = self._generated = 0  # tokens so far
        self._lock = RLock()  # Ctrl-C may leave a Condition locked that is entered itself
        self._changed = Condition(self._lock)
        self._cancel_step = Flag()
        self._closing = False
        self._closed_because = ""
        self._thread: Thread | None = None
        close_after_fork(self)

    # -- from any thread ---------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Queue a job; it runs as soon as a slot is free, unless it is over already."""
        if job.over:
            job.end()
            return
        if not (job.pending or job.restores):
            raise RequestError("the prompt is empty")  # no step would ever serve it
        with self._lock:
            self._begin()
            self._waiting.append(job)
            self._changed.notify_all()

    def between(self, task: Callable[[], R]) -> Future[R]:
        """Do a task in the runner's thread, between two steps."""
        future: Future[R] = Future()
        with self._lock:
            self._begin()
            self._tasks.append((future, task))
            self._changed.notify_all()
        return future

    def job_of(self, receiver: object) -> Job | None:
        """The job of a receiver; None if it is over. Only for tasks between steps."""
        return next((job for job in (*self._active, *self._waiting) if job.handle is receiver), None)

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
        with self._lock:
            self._changed.wait_for(lambda: not (self._waiting or self._active))
            if self._closing:
                raise self._closed()
            for slot in self.slots.all:
                self.slots.clear(slot)

    def close(self) -> None:
        """End all jobs with ClosedError, and stop the thread."""
        with self._lock:
            self._closing = True
            if self._in_step:
                self._cancel_step.set()
            self._changed.notify_all()
        if self._thread not in (
            None,
            current_thread(),
        ):  # the garbage collector may call close in that thread
            self._thread.join()

    def after_fork(self, reason: str) -> None:
        """End all jobs: this process is a forked child, and the thread that ran them is not in it."""
        lost, self._closing, self._thread = [*self._waiting, *self._active], True, None
        self._tasks.clear()
        self._closed_because = reason
        self._lock = RLock()
        self._changed, self._cancel_step = Condition(self._lock), Flag()
        self._waiting.clear()
        self._active.clear()
        for job in lost:
            job.handle.after_fork(self._closed())

    def _begin(self) -> None:
        """Start the thread, unless it runs; the caller holds the lock."""
        if self._closing:
            raise self._closed()
        if self._thread is None:
            thread = Thread(target=self._run, name="backbay runner", daemon=True)
            thread.start()
            self._thread = thread

    def _closed(self) -> ClosedError:
        return ClosedError(f"the model is closed{self._closed_because}")

    # -- in its thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait():
            try:
                self._cycle()
            except Exception as error:  # end all jobs, so that no caller waits forever
                log.exception("the runner failed")
                for job in list(self._active):
                    self._end(job, error)
        self._ahead.close()
        self._do_tasks()
        with self._lock:
            self._changed.notify_all()  # wakes `forget`, if the model closes

    def _wait(self) -> bool:
        """Sleep until there is work; False when the thread is to stop."""
        with self._lock:
            while not (self._waiting or self._active or self._tasks or self._closing):
                self._answering(False)
                self._changed.notify_all()  # wakes `forget`
                self._changed.wait()
            self._answering(True)
            return bool(self._waiting or self._active or (self._tasks and not self._closing))

    def _answering(self, now: bool) -> None:
        if self._turns is not None:
            self._turns.answering(now)

    def _cycle(self) -> None:
        # after a compute, Python's own memory is out of the core's caches: each function that is called takes 2 us
        if self._tasks:
            self._do_tasks()
        self._sweep()
        if self._waiting:
            self._admit()
        for job in list(self._active):
            self._make_room(job)
        shares: Sequence[Share[Job]] = self._scheduler.split(self._active)
        if self.speculation is not None:
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
                future.set_exception(error)

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
                slot = self.slots.take(job.prompt, reuse=job.reuse)
            except Exception as error:  # noqa: BLE001  only this job gets it
                self._waiting.popleft()
                job.end(error)
                continue
            if slot is None:
                return
            self._active.append(job)
            self._waiting.popleft()  # now, so that `forget` always sees the job in a queue
            try:
                if self.shelf is not None and job.reuse:
                    self.shelf.fetch(job.prompt, slot)
                job.start(slot)
            except Exception as error:  # noqa: BLE001  only this job gets it
                job.slot = slot
                self._end(job, error)
                continue
            if job.restores:
                self._end(job)
                continue
            if self.speculation is not None:
                self.speculation.begin(job)
            self._prompt += len(job.prompt)
            self._reused += job.done

    def _make_room(self, job: Job) -> None:
        """If the context is full, shift it or end the job."""
        if job.slot is None or job.done + min(1, job.pending) <= self.context:
            return
        keep = job.make_room(self.context)
        if keep is None:
            self._end(job)
            return
        try:
            job.go_back(self.slots.shift(job.slot, keep))
        except Exception as error:  # noqa: BLE001  only this job gets it
            self._end(job, error)

    def _step(self, shares: Sequence[Share[Job]]) -> None:
        """One forward pass; if it fails, compute each share alone, without guesses, so that only the faulty job gets the error."""
        jobs = [share.job for share in shares]
        with self._lock:
            self._cancel_step.clear()
            self._in_step = jobs
        try:
            step, rows_of = make_step(shares)
            # a backend may need a thread to watch for cancellation; steps of answers alone are too short for it
            guessed = 0 if self.speculation is None else sum(len(job.guess) for job in jobs)
            cancel = self._cancel_step if step.size > len(shares) + guessed else None
            with ALONE if self._turns is None else self._turns.step():
                if self.showing is not None:
                    for job in jobs:
                        self.showing.show(job, self.slots)
                for share in shares:
                    share.job.look_ahead(share.count, self._ahead)
                begun = perf_counter()
                results = self.step_cache.run(step, cancel)
            if self.speculation is not None:
                self.speculation.note(shares, begun)
        except CancelledError:
            for job in jobs:
                self._resume(job)
            return
        except Exception as error:  # noqa: BLE001  the faulty job gets it
            if len(shares) == 1 and not jobs[0].guess:
                self._end(jobs[0], error)
            else:
                for job in jobs:
                    self._resume(job)
                    self._step([Share(job, fitting(job, self._scheduler.room))])
            return
        finally:
            self._in_step = []
        for share, rows in zip(shares, rows_of, strict=True):
            self._hand_out(share, results[rows])

    def _resume(self, job: Job) -> None:
        """After a failed step: take guesses back, and compute again the cells that a window dropped for it."""
        job.withdraw()
        slot = job.slot
        if slot is not None and not self.slots.cache.can_resume(slot.sequence, job.done):
            job.todo = slot.tokens + job.todo
            self.slots.clear(slot)

    def _hand_out(self, share: Share[Job], rows: NDArray[Any]) -> None:
        job = share.job
        job.move_on(share.count)
        if self.shelf is not None and job.slot is not None and job.generates and len(rows) and not job.kept:
            job.kept = True
            self.shelf.keep(job.slot)
        try:
            go_on = job.receive(rows) if len(rows) else True
        except LogitsError as error:
            self._end(job, self._located(share, error))
            return
        except Exception as error:  # noqa: BLE001  only this job gets it
            self._end(job, error)
            return
        self._generated += job.taken if len(rows) else 0
        if job.refused and job.slot is not None:
            self.slots.take_back(job.slot, job.refused)
            job.refused = 0
        if not go_on:
            self._end(job)

    def _located(self, share: Share[Job], error: LogitsError) -> LogitsError:
        """The error with the first layer that gives NaN, found by computing the share again."""
        job, slot = share.job, share.job.slot
        if slot is None:
            return error
        job.todo = slot.tokens[-share.count :] + job.todo
        del slot.tokens[-share.count :]
        try:
            self.slots.cache.remove(slot.sequence, job.done)
            first = self.step_cache.first_broken(make_step([share])[0])
        except BackbayError:
            return error
        return LogitsError(f"{error}; the first that is not finite is {first}") if first else error

    def _end(self, job: Job, error: BaseException | None = None) -> None:
        slot = job.slot
        if slot is not None:
            try:
                if isinstance(error, LogitsError):
                    self.step_cache.close()  # frees memory for wiping
                    self.slots.clear(slot, wipe=True)
                elif error is not None:
                    self.slots.clear(slot)
            except Exception:
                slot.tokens.clear()
                log.warning("sequence %d could not be cleared", slot.sequence, exc_info=True)
            self.slots.release(slot)
        self._active.remove(job)  # last: `forget` must not clear the slot at the same time
        job.end(error)
