"""The process of a worker, seen from the host: its start, its frames, its end."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import IO, Protocol, final

from backbay import BackendUnavailableError
from backbay.internals import InterruptSafeEvent, raise_if_starved, start_helper

from ..runner.requests.handle import serve_here
from .exit_messages import count_memory_kills, end_reason
from .frames import Frame, FrameKind, FrameSender, read_frames
from .reports import handle_record
from .setup_messages import WorkerSetup

PATIENCE = 5.0  # seconds for a worker to free its model when it is closed; then it is killed
BEAT = 1.0  # seconds between two looks at a worker from which the host waits for something
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from backbay_engine.worker.program import main; main()"
)


class WorkerListener(Protocol):
    """Takes what a worker says, in the worker's own thread."""

    def take(self, worker: WorkerProcess, frame: Frame) -> None: ...
    def ended(self, worker: WorkerProcess, reason: str) -> None: ...
    def patience(self, worker: WorkerProcess) -> float | None:
        """The seconds that a worker may be silent now; None while nobody waits for it."""


@final
class WorkerProcess:
    """A started worker. Its thread starts the process, lives as long as it, and hands all that it says to a listener.

    On Linux a process may ask to be killed when the thread that started it ends: hence a thread of its own.
    """

    def __init__(self, setup: WorkerSetup, folder: str | None, listener: WorkerListener) -> None:
        self._setup, self._folder, self._listener = setup, folder, listener
        self._outgoing: SimpleQueue[Frame | None] = SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self.ready = False
        self.heard = 0  # parts of frames
        self._still = 0.0  # seconds without a sign of life, for which it was killed
        self.refusal: Callable[[], BaseException] | None = None  # the error of its load
        self._thread = Thread(target=self._run, name="backbay worker", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def send(self, kind: FrameKind, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame, without waiting for the worker to read it."""
        self._outgoing.put(Frame(kind, number, payload))

    def end(self) -> None:
        """Let the worker free its model and end; kill it if it does not."""
        self._outgoing.put(None)
        if self._thread is current_thread():  # the garbage collector may close a model in any thread
            self.kill()
            return
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self.kill()
            self._thread.join(PATIENCE)

    def hear(self) -> None:
        """Note a sign of life."""
        self.heard += 1

    def ping(self) -> None:
        """Ask for a sign of life; a thread of the worker's own gives it, whatever the others do."""
        self.send(FrameKind.PING)

    def stood_still(self, seconds: float) -> None:
        """Kill the worker, which gave no sign of life for so long."""
        self._still = seconds
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def after_fork(self) -> None:
        """In a forked child: let go of the parent's worker."""
        if self._process is None:
            return
        self._process.returncode = 0  # it is no child of this process
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                _pipe(pipe).close()

    def why_not(self, told: str) -> BaseException:
        """The error of what needs this worker, which ended as it is told."""
        if self.refusal is not None:
            return self.refusal()
        where = "" if self.ready else " while it loaded the model"
        return BackendUnavailableError(f"{told}{where}")

    # -- in its thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        serve_here(self._listener)
        reason = "ended"
        try:
            reason = self._serve()
        except Exception as error:  # noqa: BLE001  without a process, threads or memory
            if self._process is None:
                self.refusal = partial(_not_started, error)
            else:
                self._process.kill()
                self._process.wait()
            reason = f"could not be started: {type(error).__name__}: {error}"
        finally:
            self._listener.ended(self, reason)

    def _serve(self) -> str:
        """Start the process, and hand on what it says; why it ended."""
        kills = count_memory_kills()
        process = self._process = _started(self._folder)
        with _pipe(process.stdout) as said:
            Thread(target=self._write, args=(process,), name="backbay requests", daemon=True).start()
            watch = Watchdog(self, partial(self._listener.patience, self))
            try:
                for frame in read_frames(said, self.hear):
                    self._take(frame)
            except Exception as error:  # noqa: BLE001  no frames, or no memory for them
                process.kill()
                process.wait()
                return f"was ended, as it sent what cannot be read: {type(error).__name__}: {error}"
            finally:
                watch.end()
        return self._reason(process, kills)

    def _take(self, frame: Frame) -> None:
        if frame.kind is FrameKind.LOG:
            handle_record(frame.payload)
        else:
            self._listener.take(self, frame)

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(OSError), _pipe(process.stdin) as pipe:  # if the process died, the other thread tells
            sender = FrameSender(pipe)
            sender.send(FrameKind.SETUP, payload=pickle.dumps(self._setup))
            while (sent := self._outgoing.get()) is not None:
                sender.send(*sent)

    def _reason(self, process: subprocess.Popen[bytes], kills: int | None) -> str:
        """Why the process ended; it has closed its pipe."""
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        self._outgoing.put(None)
        if self._still:
            return f"was killed: it stood still for {self._still:g} s"
        return end_reason(status, kills)


def _not_started(error: Exception) -> BackendUnavailableError:
    try:
        raise_if_starved(error, "starting the model's worker")
    except BackendUnavailableError as starved:
        return starved
    return BackendUnavailableError(f"the model's worker could not be started: {error}")


def _started(folder: str | None) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise BackendUnavailableError("this Python has no sys.executable")
    warnings = [f"-W{option}" for option in sys.warnoptions]
    return start_helper(
        [sys.executable, "-P", *warnings, "-c", _PROGRAM, json.dumps([str(place) for place in sys.path])],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
    )


def _pipe(pipe: IO[bytes] | None) -> io.FileIO:
    assert isinstance(pipe, io.FileIO)  # Popen opened it without a buffer
    return pipe


@final
class Watchdog:
    """Looks at a worker once in a beat, in a thread of its own.

    `patience` gives the seconds that a worker may be silent now; None while nobody waits for it. Beats are counted, as
    no clock tells whether the host itself stood still meanwhile, stopped by Ctrl+Z for example.
    """

    def __init__(self, worker: WorkerProcess, patience: Callable[[], float | None]) -> None:
        self._worker, self._patience = worker, patience
        self._over = InterruptSafeEvent()
        Thread(target=self._run, name="backbay watch", daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def _run(self) -> None:
        heard, silent = self._worker.heard, 0
        while not self._over.wait(BEAT):
            patience = self._patience()
            if patience is None or heard != self._worker.heard:
                heard, silent = self._worker.heard, 0
                continue
            silent += 1
            if silent * BEAT > patience:
                self._worker.stood_still(silent * BEAT)
                return
            self._worker.ping()
