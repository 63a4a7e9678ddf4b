"""The program of a worker: it opens a model, and answers the host's requests until the host closes the pipe."""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, TypeAlias, final

import numpy as np

from ..local.opening.placement import open_port
from ..local.port import LocalPort
from ..port.questions import Question, QuestionLane
from ..runner.requests.answer import TokenStep
from ..runner.requests.request import AnyRequest, Generate
from .exit_messages import MUTE
from .frames import Frame, FrameKind, FrameSender, read_frames
from .reports import pack_error, send_records
from .setup_messages import ModelDescription, WorkerSetup, describe_model, map_options, received_option

Task: TypeAlias = Callable[[], None]

PATIENCE = 1.0  # seconds for a worker to end by itself, once the host is gone
SIGN = 1.0  # seconds between signs of life while a large request comes, as no ping gets past it
CHUNK = 1 << 18  # bytes of an array between which other frames may pass


def main() -> None:
    """Serve the host that holds the other ends of standard input and output; both are the worker's alone."""
    _outlive_nobody()
    sys.argv[1:] = []
    _open_standard_error()
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)  # what a library prints must not get among the frames
    # Both stay open until the process ends, as threads may use them until then.
    Worker(io.FileIO(requests, closefd=False), FrameSender(io.FileIO(answers, "w", closefd=False))).serve()


@final
class Worker:
    """Serves one host. The main thread loads the model, another one reads what the host sends."""

    def __init__(self, requests: io.FileIO, host: FrameSender) -> None:
        self._host, self._frames = host, read_frames(requests, self._tell_of_life)
        self._told = monotonic()
        self._stop_loading, self._over = Event(), Event()
        self._port: LocalPort | None = None
        self._cancel: dict[int, Task] = {}
        self._results: SimpleQueue[Task] = SimpleQueue()  # large ones go while the runner goes on
        self._lanes = {lane: SimpleQueue[Task]() for lane in QuestionLane if lane is not QuestionLane.AT_ONCE}

    def serve(self) -> None:
        setup = next(self._frames, None)
        if setup is None:
            return
        try:
            _start("backbay requests", self._read)
            _start("backbay results", partial(_do, self._results))
            for lane, tasks in self._lanes.items():
                _start(f"backbay {lane.value}", partial(_do, tasks))
            self._open(pickle.loads(setup.payload))  # noqa: S301  the host wrote it
        except BaseException as error:  # noqa: BLE001  the host raises it
            self._host.send(FrameKind.REFUSED, payload=pack_error(error))
            _start("backbay end", _end_soon)
            return
        self._over.wait()
        if self._port is not None:
            self._port.close()

    def _open(self, setup: WorkerSetup) -> None:
        send_records(setup.levels, partial(self._host.send, FrameKind.LOG, 0))
        options = map_options(setup.options, received_option)
        port = open_port(setup.path, received_option(setup.backend), options, self._stop_loading)
        port.constraint_maker.tried = True  # by the host
        description = describe_model(port) if setup.with_vocabulary else ModelDescription(port.facts)
        self._host.send(FrameKind.OPENED, payload=pickle.dumps(description))
        port.load(
            lambda done: self._host.send(FrameKind.PROGRESS, payload=pickle.dumps(done)), self._stop_loading
        )
        self._port = port
        self._host.send(FrameKind.READY)

    # -- in the thread that reads ------------------------------------------------------------------------

    def _read(self) -> None:
        """Do what the host asks; end when it is gone, even if the model hangs."""
        try:
            for frame in self._frames:
                self._take(frame)
        finally:
            self._stop_loading.set()
            self._over.set()
            _end_soon()

    def _tell_of_life(self) -> None:
        if monotonic() - self._told > SIGN:
            self._told = monotonic()
            self._host.send(FrameKind.ALIVE)

    def _take(self, frame: Frame) -> None:
        if frame.kind is FrameKind.REQUEST and self._port is not None:
            self._host.send(FrameKind.BEGUN, frame.number)
            self._begin(self._port, frame.number, frame.payload)
        elif frame.kind is FrameKind.CANCEL:
            cancel = self._cancel.get(frame.number)
            if cancel is not None:
                cancel()
        elif frame.kind is FrameKind.PING:
            self._host.send(FrameKind.ALIVE)
        elif frame.kind is FrameKind.STOP_LOADING:
            self._stop_loading.set()

    def _begin(self, port: LocalPort, number: int, payload: bytes) -> None:
        cancel, lane = Event(), QuestionLane.AT_ONCE
        self._cancel[number] = cancel.set
        try:
            message: AnyRequest | Question[Any] = pickle.loads(payload)  # noqa: S301  the host wrote it
        except BaseException as error:  # noqa: BLE001  the request gets it
            self._relay(number, cancel.set).fail(error)
            return
        if isinstance(message, Question):
            lane = message.lane
        elif isinstance(message, Generate) and message.options.response_format is not None:
            lane = QuestionLane.QUICK  # the first format needs seconds for a large vocabulary
        task = partial(self._answer, port, number, message, cancel)
        if lane is QuestionLane.AT_ONCE:
            task()
        else:
            self._lanes[lane].put(task)

    def _answer(
        self, port: LocalPort, number: int, message: AnyRequest | Question[Any], cancel: Event
    ) -> None:
        """Answer a question, or begin with a request; `cancel` is set if it is cancelled before."""
        try:
            if isinstance(message, Question):
                self._relay(number, cancel.set).succeed(port.ask(message, cancel))
                return
            port.begin(message, partial(self._relay, number), number)
            if cancel.is_set() and (cancel_job := self._cancel.get(number)) is not None:
                cancel_job()
        except BaseException as error:  # noqa: BLE001  the request gets it
            self._relay(number, cancel.set).fail(error)

    def _relay(self, number: int, cancel: Task) -> StepSender:
        self._cancel[number] = cancel
        return StepSender(self._host, number, self._cancel, self._results)


@final
class StepSender:
    """Sends what a request gives to the host. If even an error cannot be sent, the worker ends: nobody waits for ever."""

    def __init__(
        self, host: FrameSender, number: int, open: dict[int, Task], large: SimpleQueue[Task]
    ) -> None:
        self._host, self._number, self._open, self._large = host, number, open, large

    def emit(self, step: TokenStep) -> None:
        self._send(FrameKind.STEP, tuple(step))

    def succeed(self, result: Any) -> None:
        self._open.pop(self._number, None)
        if isinstance(result, np.ndarray):
            self._large.put(partial(self._send, FrameKind.ARRAY, result))
        else:
            self._send(FrameKind.RESULT, result)

    def fail(self, error: BaseException) -> None:
        self._open.pop(self._number, None)
        try:
            self._host.send(FrameKind.FAILED, self._number, pack_error(error))
        except BrokenPipeError:  # the host is gone, and this process ends
            pass
        except BaseException:  # noqa: BLE001  there is no memory for it
            os._exit(MUTE)

    def after_fork(self, error: BaseException) -> None:
        """Nothing: the pipe is the parent's."""

    def _send(self, kind: FrameKind, value: Any) -> None:
        try:
            if kind is not FrameKind.ARRAY:
                self._host.send(kind, self._number, pickle.dumps(value))
                return
            data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
            self._host.send(kind, self._number, pickle.dumps((value.shape, value.dtype.str)))
            for at in range(0, len(data), CHUNK):
                self._host.send_part(FrameKind.BYTES, self._number, data[at : at + CHUNK])
        except BrokenPipeError:
            pass
        except BaseException as error:  # noqa: BLE001  the request gets it
            self.fail(error)


def _start(name: str, task: Task) -> None:
    Thread(target=task, name=name, daemon=True).start()


def _do(tasks: SimpleQueue[Task]) -> None:
    """Do one task after the other."""
    while True:
        tasks.get()()


def _end_soon() -> None:
    """End the process even if a plugin's thread or exit hook does not."""
    sleep(PATIENCE)
    os._exit(0)


def _open_standard_error() -> None:
    """Let no pipe take the number of a closed standard error, which libraries write to."""
    try:
        os.fstat(2)
    except OSError:
        while os.open(os.devnull, os.O_WRONLY) < 2:
            pass


def _outlive_nobody() -> None:
    """Leave Ctrl+C to the host, and die with the host, even if a library hangs (on Linux)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        PR_SET_PDEATHSIG = 1
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
