"""Items run in worker processes: a crash or a hang fails one item, and the run goes on."""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import IO, Any

from backbay import BackbayError, BackendUnavailableError, OptionError
from backbay.internals import exit_name, kill_helper, start_helper

from ...draw.choices import Source, following, replayed
from ...draw.hypothesis_search import find_failure
from ...report.report import Outcome
from ...suite.lab import SCENARIOS
from ...suite.profiles import WORKER
from ...workloads.model_calls import LIKE, ModelCallCounts
from ..items.group_run import Kinds, is_alike, simplicity
from ..items.item_run import EXPLAINING, is_call
from ..selection import Item, RunSettings, in_rounds
from .process_time_limit import ProcessTimeLimit

STARTING = 120.0
"""Seconds for a worker to import the backend and open it, beside those that the backend's trial may take."""

BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # the environment variable for the threads of NumPy's products

logger = logging.getLogger(__name__)

ENOUGH = 3
"""After so many crashes or hangs, a case's other calls are left out: each costs a process or a timeout."""

ZEROS = replayed([])
TICK = 0.2  # seconds between two looks whether the run should stop

AFTER_A_HANG, SHORTEST = 0.1, 1.0
"""After a case's first hang, its other calls may take this share of the timeout, and at least so many seconds."""


@dataclass
class SharedRunState:
    """State shared by all workers of a run: deaths of each case, its hangs, and the kinds of failures already small."""

    deaths: Counter[str] = field(default_factory=Counter)
    hung: set[str] = field(default_factory=set)
    small: Kinds = field(default_factory=set)


class WorkerDiedError(Exception):
    """A worker ended, or was ended because it hung."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check


class Worker:
    """A process that runs items and tells their outcomes."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.folder = tempfile.TemporaryDirectory(prefix=WORKER, ignore_cleanup_errors=True)
        reading, writing = os.pipe()
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as the worker
        self.printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 as above
        self.process = start_helper(
            [sys.executable, "-m", f"{__package__}.worker_program", str(writing)],
            stdin=subprocess.PIPE,
            stdout=self.output,
            stderr=self.printed,
            pass_fds=(writing,),
            env={
                BLAS_THREADS: "1",  # each core has a worker: more threads would only wait for each other
                "GGML_NO_BACKTRACE": "1",  # an abort of ggml would start a debugger
                **os.environ,
                "TMPDIR": self.folder.name,  # a killed worker's files are removed with it
            },
        )
        os.close(writing)
        self._reading, self._pending = reading, b""
        seconds = STARTING
        first: dict[str, Any] = {}
        try:
            self.tell(asdict(settings))
            while "trial_seconds" in (first := self.hear(seconds)):  # what the backend's trial may take
                seconds += first["trial_seconds"]
        except WorkerDiedError as error:
            first["fatal"] = str(error)
        if "fatal" in first:
            self.close()
            raise BackendUnavailableError(f"backend {settings.backend!r} cannot be opened: {first['fatal']}")
        if "unread" in first:
            self.close()
            raise BackbayError(first["unread"])
        self.facts: dict[str, Any] = first["facts"]
        self.asked = ModelCallCounts(**first["asked"])

    def tell(self, message: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((json.dumps(message) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerDiedError("crash", self._ending()) from None

    def hear(self, seconds: float) -> dict[str, Any]:
        """The next message but warnings, which are passed on; WorkerDiedError if the process ends first, or takes longer."""
        clock = ProcessTimeLimit(self.process.pid, seconds)
        while "warning" in (message := self._message(clock, seconds)):
            logger.warning("%s", message["warning"])
        return message

    def _message(self, clock: ProcessTimeLimit, seconds: float) -> dict[str, Any]:
        while b"\n" not in self._pending:
            if not select.select([self._reading], [], [], clock.pause)[0]:
                if clock.over:
                    kill_helper(self.process)
                    raise WorkerDiedError("hang", f"no answer within {seconds:g} s")
                continue
            data = os.read(self._reading, 1 << 16)
            if not data:
                raise WorkerDiedError("crash", self._ending())
            self._pending += data
        text, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, Any] = json.loads(text)
        return message

    def _ending(self) -> str:
        how = exit_name(self.process.wait())
        self.printed.seek(0)
        last = self.printed.read()[-400:].decode(errors="replace").strip()
        return f"the process ended with {how}" + (f": {last}" if last else "")

    def close(self) -> None:
        kill_helper(self.process)
        self.process.communicate()
        os.close(self._reading)
        self.output.close()
        self.printed.close()
        self.folder.cleanup()


class WorkerSupervisor:
    """Runs items in a worker process, and starts another one when it dies."""

    def __init__(self, settings: RunSettings, seen: SharedRunState | None = None) -> None:
        self.settings, self.seen = settings, seen or SharedRunState()
        self.facts: dict[str, Any] = {}
        self._worker: Worker | None = None

    def run(self, items: Sequence[Item]) -> list[Outcome]:
        return list(self.each(items))

    def each(self, items: Sequence[Item]) -> Iterator[Outcome]:
        """The outcomes as they come. A worker's death is a failed outcome, and another worker continues."""
        deaths = self.seen.deaths
        left = [item for item in items if deaths[item.group] < ENOUGH]
        while left:
            count = 0
            job = {"items": [astuple(item) for item in left], "small": sorted(self.seen.small)}
            for outcome in self._until_death(left, job):
                count += not outcome.again
                yield outcome
            if self._worker is None:
                deaths[left[min(count, len(left)) - 1].group] += 1
            left = [item for item in left[count:] if deaths[item.group] < ENOUGH]

    def again(self, item: Item, recorded: Outcome) -> Outcome:
        """The outcome of a recorded failure's item, with its choices and data; OptionError if the model has no such call."""
        if item.profile == LIKE and not item.turn < self._started().asked.calls.get(item.name, 0):
            raise OptionError(f"the model has no call {item}; give --like")
        (outcome,) = self._until_death([item], {"items": [astuple(item)], "recorded": vars(recorded)})
        return outcome

    def asking(self, item: Item, source: Source) -> Outcome:
        """The outcome of an item, each of whose choices the worker asks for."""
        (outcome,) = self._until_death([item], {"items": [astuple(item)], "asks": True}, source)
        return outcome

    def _until_death(
        self, items: Sequence[Item], job: dict[str, Any], source: Source = ZEROS
    ) -> Iterator[Outcome]:
        worker, done, tried = self._started(), 0, items[0]
        known = Outcome(str(tried))
        try:
            worker.tell(job)
            while True:
                message = worker.hear(self._time_limit(tried, known))
                if "idle" in message:
                    return
                if "below" in message:
                    worker.tell(source(message["below"], None))
                elif "done" in message:
                    outcome = Outcome(**message["done"])
                    if outcome.failed:
                        self.seen.small.add((tried.group, outcome.check))
                    done += not outcome.again
                    tried = items[min(done, len(items) - 1)]
                    known = Outcome(str(tried))
                    yield outcome
                else:
                    known = Outcome(**message["call"])
        except WorkerDiedError as error:
            self.close()
            if not known.failed:  # else the worker died while shrinking a failure
                known.status, known.check, known.message = "failed", error.check, str(error)
            yield self._described(tried, self._smaller(tried, known))

    def _started(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self.settings)
            self.facts = self._worker.facts
        return self._worker

    def _time_limit(self, item: Item, known: Outcome) -> float:
        """The seconds that a call may take: few after another call of its case has hung."""
        scenario, limit = SCENARIOS.get((item.profile, item.name)), self.settings.timeout
        if scenario is not None and scenario.timeout:
            limit = max(limit, scenario.timeout)
        if item.group in self.seen.hung:
            limit = min(limit, max(SHORTEST, limit * AFTER_A_HANG))
        return limit + (self.settings.shrink + EXPLAINING if known.failed else 0)

    def _smaller(self, item: Item, casualty: Outcome) -> Outcome:
        """A smaller call that crashes in the same way; each candidate costs a process. A hang is not made smaller."""
        group = item.group
        if casualty.check == "hang":
            self.seen.hung.add(group)
        kind = (group, casualty.check)
        if casualty.check != "crash" or kind in self.seen.small or self.settings.shrink <= 0:
            return casualty
        self.seen.small.add(kind)
        first, best = list(casualty.choices), casualty

        def example(source: Source, new: bool) -> bool:
            """The casualty itself if it is new, then what Hypothesis makes of it."""
            nonlocal best
            with closing(WorkerSupervisor(replace(self.settings, shrink=0.0))) as other:
                outcome = other.asking(item, following(source, first) if new else source)
            if not is_alike(outcome, casualty):
                return False
            best = min(best, outcome, key=simplicity)
            return True

        if first:
            find_failure(example, 1, item.seed(self.settings.seed), seconds=2 * self.settings.shrink)
        return best

    def _described(self, item: Item, casualty: Outcome) -> Outcome:
        """The casualty with its data and its program; another worker draws the call, and does not run it."""
        if not (is_call(item) and casualty.choices):
            return casualty
        job = {"items": [astuple(item)], "described": vars(casualty)}
        with closing(WorkerSupervisor(replace(self.settings, shrink=0.0))) as other:
            (outcome,) = other._until_death([item], job)
        return outcome if outcome.choices else casualty

    def kill(self) -> None:
        """End the worker's process, from another thread; the supervisor notices."""
        if (worker := self._worker) is not None:
            worker.process.kill()

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


def ask_worker(settings: RunSettings) -> tuple[dict[str, Any], ModelCallCounts]:
    """The facts about the backend, and the calls of the settings' model: a worker opens both, and then ends."""
    with closing(Worker(settings)) as worker:
        return worker.facts, worker.asked


class SupervisorThread:
    """A thread with a supervisor of its own, which takes groups of items from a shared queue."""

    def __init__(
        self, settings: RunSettings, seen: SharedRunState, left: deque[list[Item]], done: queue.Queue[Any]
    ) -> None:
        self.left, self.done, self.supervisor = left, done, WorkerSupervisor(settings, seen)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            while self.left and not self.stopped.is_set():
                with suppress(IndexError):  # another thread took the last group
                    for outcome in self.supervisor.each(self.left.popleft()):
                        self.done.put(outcome)
                        if self.stopped.is_set():
                            break
            self.done.put(None)
        except BaseException as error:  # noqa: BLE001 the run raises it in its own thread
            self.done.put(error)
        finally:
            self.supervisor.close()


def isolated(
    settings: RunSettings,
    planned: Sequence[Item],
    jobs: int = 1,
    facts: dict[str, Any] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[Outcome]:
    """The outcomes as they come, from `jobs` workers at once; `facts` receives a worker's facts about the backend.

    `stop` is asked several times a second; once it returns True, the workers are ended.
    """
    left = deque(in_rounds(planned))
    done: queue.Queue[Any] = queue.Queue()
    seen = SharedRunState()
    threads = [SupervisorThread(settings, seen, left, done) for _ in range(max(1, min(jobs, len(left))))]
    working = len(threads)
    try:
        while working and not stop():
            try:
                result = done.get(timeout=TICK)
            except queue.Empty:
                continue
            if isinstance(result, BaseException):
                raise result
            if result is None:
                working -= 1
            else:
                yield result
        if facts is not None:
            facts.update(threads[0].supervisor.facts)
    finally:
        for thread in threads:
            thread.stopped.set()
            thread.supervisor.kill()
        for thread in threads:
            thread.thread.join(timeout=5)
