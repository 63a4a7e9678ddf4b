"""Workers that stand still: whoever waits for one waits for a bounded time, and the worker is killed."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from dying_backend import Stopping
from patience import PATIENCE, wait_until
from small_llama import EOS, write_small_llama
from worker_processes import is_gone

from backbay import BackendUnavailableError, CancelledError
from backbay_engine import DeadlineError, load
from backbay_engine.worker import process, worker_link
from backbay_engine.worker.frames import FrameKind, FrameSender, read_frames
from backbay_engine.worker.process import BEAT, Watchdog
from backbay_engine.worker.worker_link import STOPPING

if not Path("/proc/self/stat").exists():
    pytest.skip("only Linux tells whether a process is stopped", allow_module_level=True)

SIZES = {"context": 128, "parallel": 2, "num_threads": 1}
ENDLESS = {"num_keep": 0, "logit_bias": {EOS: float("-inf")}}
STOOD_STILL = "was killed: it stood still for"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_small_llama(tmp_path_factory.mktemp("models") / "endless.gguf", endless=True)


class Workers:
    """The workers that were started, each for as long as it is not silent for longer than it may."""

    def __init__(self, monkeypatch):
        self.started, self.alive = [], 0
        self._monkeypatch, self._process = monkeypatch, worker_link.WorkerProcess
        monkeypatch.setattr(process, "BEAT", 0.05)
        monkeypatch.setattr(worker_link, "WorkerProcess", self.start)

    def start(self, *args):
        for limit in ("LOADING", "ANSWERING", "STOPPING"):
            self.allow(limit, PATIENCE)  # however slow the machine is
        self.started.append(self._process(*args))
        return self.started[-1]

    def allow(self, limit, seconds):
        self._monkeypatch.setattr(worker_link, limit, seconds)

    def count_signs(self):
        """Count the answers to the watch from now on."""
        take = process.WorkerProcess._take

        def counted(worker, frame):
            self.alive += frame.kind is FrameKind.ALIVE
            take(worker, frame)

        self._monkeypatch.setattr(process.WorkerProcess, "_take", counted)


@pytest.fixture
def workers(monkeypatch):
    return Workers(monkeypatch)


def stop(llm):
    """Stop the worker; on a busy machine it goes on for some milliseconds."""
    pid = llm.worker_pid
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    return pid


@pytest.mark.fault(
    "a worker stands still while requests run, with `retries=0`",
    "BackendUnavailableError; it is killed, and the next request works",
)
def test_a_worker_that_stands_still_is_an_error_of_what_ran(path, workers):
    with load(path, "cpu_ref", **SIZES, worker=True, retries=0) as llm:
        running = llm.submit("x", **ENDLESS)
        next(iter(running))
        pid = stop(llm)
        workers.allow("ANSWERING", 0.5)
        with pytest.raises(BackendUnavailableError, match=STOOD_STILL):
            running.result(300)
        assert is_gone(pid)
        assert llm.generate("x", max_tokens=2).tokens
        stop(llm)
        workers.allow("ANSWERING", 0.5)
        assert llm.memory().total()  # the stopped worker never began it, so that the next one does it


@pytest.mark.fault(
    "a request of a worker that stands still is cancelled", "BackendUnavailableError within 6 s"
)
def test_a_cancelled_request_does_not_wait_for_a_worker_that_stands_still(path, workers):
    assert STOPPING + BEAT <= 6
    with load(path, "cpu_ref", **SIZES, worker=True, retries=0) as llm:
        running = llm.submit("x", **ENDLESS)
        next(iter(running))
        stop(llm)
        workers.allow("STOPPING", 0.5)
        running.cancel()
        with pytest.raises(BackendUnavailableError, match=STOOD_STILL):
            running.result(300)


@pytest.mark.fault("a worker stands still while it loads", "BackendUnavailableError")
@pytest.mark.thorough
def test_a_worker_that_stands_still_in_its_load_is_an_error(path, workers):
    with pytest.raises(BackendUnavailableError, match=f"{STOOD_STILL} .* while it loaded the model"):
        load(path, Stopping, worker=True, progress=lambda done: done and workers.allow("LOADING", 0.5))


@pytest.mark.thorough
def test_a_cancelled_load_does_not_wait_for_a_worker_that_stands_still(path, workers):
    cancel = threading.Event()

    def progress(done):
        if done:
            workers.allow("STOPPING", 0.5)
            cancel.set()

    with pytest.raises((BackendUnavailableError, CancelledError)):
        load(path, Stopping, worker=True, progress=progress, cancel=cancel)


@pytest.mark.fault(
    "a request's deadline passes while its worker loads or stands still", "DeadlineError in the request"
)
def test_a_request_does_not_wait_for_a_worker_longer_than_its_deadline(path, workers):
    with load(path, "cpu_ref", **SIZES, worker=True) as llm:
        pid = stop(llm)
        late = llm.submit("x", max_tokens=2, deadline=0.5)
        patient = llm.submit("x", max_tokens=2, deadline=600)
        with pytest.raises(DeadlineError, match="the worker was not ready"):
            late.result(300)
        assert not patient.done
        os.kill(pid, signal.SIGCONT)
        assert patient.result(300).tokens


def test_a_worker_that_computes_answers_the_watch(path, workers):
    workers.count_signs()
    with load(path, "cpu_ref", **SIZES, worker=True) as llm:
        running = llm.submit("x", **ENDLESS)
        next(iter(running))
        for _ in range(5):
            before = workers.alive
            workers.started[0].ping()
            wait_until(lambda before=before: workers.alive > before)
        assert not running.done
        running.cancel()
        assert running.result(300).finish_reason == "cancelled"


@pytest.mark.fault("a large request takes long to reach its worker", "it arrives")
def test_a_worker_tells_that_it_lives_while_a_large_request_comes(path, workers, monkeypatch):
    """A snapshot comes in parts, for longer than the worker is silent; no ping gets past it."""
    workers.count_signs()
    with load(path, "cpu_ref", **SIZES, worker=True, retries=0) as llm:
        snapshot = llm.save("abc" * 30)
        size, signs, written = len(snapshot.to_bytes()), [], FrameSender._write

        def slowly(sender, data):
            """Write half of what is as large as a snapshot, then small parts of it until the worker tells that it lives."""
            if len(data) < size // 2:
                written(sender, data)
                return
            at = len(data) // 2
            written(sender, data[:at])
            before = workers.alive
            while at < len(data) - 1 and workers.alive < before + 2:
                written(sender, data[at : at + 1])
                at += 1
                time.sleep(0.05)
            signs.append(workers.alive - before)
            written(sender, data[at:])

        monkeypatch.setattr(FrameSender, "_write", slowly)
        llm.restore(snapshot)
        assert signs == [2]
        assert len(workers.started) == 1


class PartPipe:
    """Its bytes come in small parts."""

    size = 512

    def __init__(self, pipe):
        self.pipe = pipe

    def readinto(self, room):
        return self.pipe.readinto(room[: PartPipe.size])


def test_each_part_of_a_large_result_is_a_sign_of_life(path, workers, monkeypatch):
    monkeypatch.setattr(process, "read_frames", lambda pipe, on_part: read_frames(PartPipe(pipe), on_part))
    with load(path, "cpu_ref", **SIZES, worker=True, retries=0) as llm:
        before = workers.started[0].heard
        parts = len(llm.save("abc" * 30).to_bytes()) // PartPipe.size
        assert workers.started[0].heard - before >= parts > 10


class Silent:
    heard, pings, silent = 0, 0, None

    def ping(self):
        self.pings += 1

    def stood_still(self, seconds):
        self.silent = seconds


def test_nobody_watches_a_worker_that_nobody_waits_for(monkeypatch):
    monkeypatch.setattr(process, "BEAT", 0.01)
    worker, looks = Silent(), []
    watching = Watchdog(worker, lambda: looks.append(None))
    wait_until(lambda: len(looks) > 10)
    watching.end()
    assert (worker.pings, worker.silent) == (0, None)


def test_an_idle_worker_may_be_silent(path, workers):
    with load(path, "cpu_ref", **SIZES, worker=True) as llm:
        assert llm._port._link.patience(workers.started[0]) is None
        running = llm.submit("x", **ENDLESS)
        next(iter(running))
        assert llm._port._link.patience(workers.started[0]) == worker_link.ANSWERING
        running.cancel()
        running.result(300)
        assert llm._port._link.patience(workers.started[0]) is None


def test_a_watch_counts_the_beats_since_the_last_sign_of_life(monkeypatch):
    monkeypatch.setattr(process, "BEAT", 0.01)
    worker, looks = Silent(), []

    def patience():
        looks.append(None)
        if len(looks) <= 20 and len(looks) % 4 == 0:
            worker.heard += 1
        return 0.05

    watching = Watchdog(worker, patience)
    wait_until(lambda: worker.silent is not None)
    assert worker.silent == pytest.approx(0.06)
    assert (len(looks), worker.pings) == (26, 20)
    watching.end()
