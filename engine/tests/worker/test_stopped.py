"""Workers that stand still: whoever waits for one waits for a bounded time, and the worker is killed."""

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from dying_backend import Stopping
from small_llama import EOS, write_small_llama
from worker_processes import is_gone

from backbay import BackendUnavailableError, CancelledError
from backbay_engine import DeadlineError, load
from backbay_engine.worker.host import engine as worker_engine
from backbay_engine.worker.host import process, watch
from backbay_engine.worker.host.watch import Watch
from backbay_engine.worker.wire.frames import Sender, frames

if not Path("/proc/self/stat").exists():
    pytest.skip("only Linux tells whether a process is stopped", allow_module_level=True)

SIZES = {"context": 128, "parallel": 2, "num_threads": 1}
ENDLESS = {"num_keep": 0, "logit_bias": {EOS: float("-inf")}}
STOOD_STILL = "was killed: it stood still for"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_small_llama(tmp_path_factory.mktemp("models") / "endless.gguf", endless=True)


@pytest.fixture
def impatient(monkeypatch):
    """A watch that is patient with a busy machine, no more."""
    monkeypatch.setattr(watch, "BEAT", 0.2)
    monkeypatch.setattr(worker_engine, "ANSWERING", 5.0)
    monkeypatch.setattr(worker_engine, "STOPPING", 3.0)


def stop(llm):
    """Stop the worker; on a busy machine it goes on for some milliseconds."""
    pid = llm.worker_pid
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)
    return pid


@pytest.mark.fault(
    "a worker stands still while requests run, with `retries=0`",
    "BackendUnavailableError; it is killed, and the next request works",
)
def test_a_worker_that_stands_still_is_an_error_of_what_ran(path, impatient):
    with load(path, "cpu_ref", **SIZES, worker=True, retries=0) as llm:
        running = llm.submit("x", **ENDLESS)
        next(iter(running))
        pid = stop(llm)
        with pytest.raises(BackendUnavailableError, match=STOOD_STILL):
            running.result(60)
        assert is_gone(pid)
        assert llm.generate("x", max_tokens=2).tokens
        stop(llm)
        assert llm.memory().total()  # the stopped worker never began it, so that the next one does it


@pytest.mark.fault(
    "a request of a worker that stands still is cancelled", "BackendUnavailableError within 6 s"
)
def test_a_cancelled_request_does_not_wait_for_a_worker_that_stands_still(path, impatient, monkeypatch):
    monkeypatch.setattr(worker_engine, "ANSWERING", 600.0)
    with load(path, "cpu_ref", **SIZES, worker=True, retries=0) as llm:
        running = llm.submit("x", **ENDLESS)
        next(iter(running))
        stop(llm)
        running.cancel()
        with pytest.raises(BackendUnavailableError, match=STOOD_STILL):
            running.result(60)


@pytest.mark.fault("a worker stands still while it loads", "BackendUnavailableError")
def test_a_worker_that_stands_still_in_its_load_is_an_error(path, impatient, monkeypatch):
    monkeypatch.setattr(worker_engine, "LOADING", 10.0)
    with pytest.raises(BackendUnavailableError, match=f"{STOOD_STILL} .* while it loaded the model"):
        load(path, Stopping, worker=True)


def test_a_cancelled_load_does_not_wait_for_a_worker_that_stands_still(path, impatient, monkeypatch):
    monkeypatch.setattr(worker_engine, "LOADING", 600.0)
    cancel = threading.Event()
    with pytest.raises((BackendUnavailableError, CancelledError)):
        load(path, Stopping, worker=True, progress=lambda done: done and cancel.set(), cancel=cancel)


@pytest.mark.fault(
    "a request's deadline passes while its worker loads or stands still", "DeadlineError in the request"
)
def test_a_request_does_not_wait_for_a_worker_longer_than_its_deadline(path, impatient, monkeypatch):
    monkeypatch.setattr(worker_engine, "ANSWERING", 600.0)
    with load(path, "cpu_ref", **SIZES, worker=True) as llm:
        pid = stop(llm)
        late = llm.submit("x", max_tokens=2, deadline=0.5)
        patient = llm.submit("x", max_tokens=2, deadline=600)
        with pytest.raises(DeadlineError, match="the worker was not ready"):
            late.result(60)
        assert not patient.done
        os.kill(pid, signal.SIGCONT)
        assert patient.result(60).tokens


def test_a_worker_that_is_only_slow_is_left_alone(path, impatient):
    """It answers the watch whatever its other threads do."""
    with load(path, "cpu_ref", **SIZES, worker=True) as llm:
        running = llm.submit("x", **ENDLESS)
        time.sleep(7)
        running.cancel()
        assert running.result(60).finish_reason == "cancelled"


@pytest.mark.fault("a large request takes long to reach its worker", "it arrives")
def test_a_worker_whose_pipes_are_slow_is_left_alone(path, impatient, monkeypatch):
    """A snapshot comes and goes in parts, for longer than a silent worker would live; no ping gets past it."""
    monkeypatch.setattr(worker_engine, "ANSWERING", 3.0)
    with load(path, "cpu_ref", **SIZES, worker=True, retries=0) as llm:
        pid = llm.worker_pid
        snapshot = llm.save("abc" * 30)
        size, begun = len(snapshot.to_bytes()), time.monotonic()
        written = Sender._write
        monkeypatch.setattr(
            Sender, "_write", lambda sender, data: slowly(partial(written, sender), data, size)
        )
        llm.restore(snapshot)
        assert time.monotonic() - begun > 6
        monkeypatch.undo()
        assert (llm.generate("x", max_tokens=2).finish_reason, llm.worker_pid) == ("length", pid)


def slowly(write, data, size):
    """Write what is as large as a snapshot in 60 parts, with a pause of a tenth of a second behind each."""
    if len(data) < size // 2:
        write(data)
        return
    for at in range(0, len(data), step := max(1, len(data) // 60)):
        write(data[at : at + step])
        time.sleep(0.1)


class SlowPipe:
    """Its bytes come in small parts, with a pause behind each."""

    part, pause = 512, 0.0

    def __init__(self, pipe):
        self.pipe = pipe

    def readinto(self, room):
        time.sleep(SlowPipe.pause)
        return self.pipe.readinto(room[: SlowPipe.part])


def test_a_worker_whose_large_result_comes_slowly_is_left_alone(path, impatient, monkeypatch):
    monkeypatch.setattr(worker_engine, "ANSWERING", 3.0)
    monkeypatch.setattr(process, "frames", lambda pipe, on_part: frames(SlowPipe(pipe), on_part))
    with load(path, "cpu_ref", **SIZES, worker=True, retries=0) as llm:
        parts = len(llm.save("abc" * 30).to_bytes()) / SlowPipe.part
        pid, begun = llm.worker_pid, time.monotonic()
        monkeypatch.setattr(SlowPipe, "pause", 7 / parts)
        assert llm.save("abc" * 30).to_bytes()
        monkeypatch.undo()
        assert time.monotonic() - begun > 6
        assert (llm.generate("x", max_tokens=2).finish_reason, llm.worker_pid) == ("length", pid)


class Silent:
    heard, pings, silent = 0, 0, None

    def ping(self):
        self.pings += 1

    def stood_still(self, seconds):
        self.silent = seconds


def test_nobody_watches_a_worker_that_nobody_waits_for(monkeypatch):
    monkeypatch.setattr(watch, "BEAT", 0.01)
    worker, patience = Silent(), [None]
    watching = Watch(worker, lambda: patience[0])
    time.sleep(0.2)
    assert (worker.pings, worker.silent) == (0, None)
    patience[0] = 0.05
    until = time.monotonic() + 20
    while worker.silent is None and time.monotonic() < until:
        time.sleep(0.01)
    assert worker.pings > 0
    assert worker.silent == pytest.approx(0.06)
    watching.end()
