"""The program of a worker: it opens a model, and answers the host's requests until the host closes the pipe."""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, TypeAlias, final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ..engines.local import LocalEngine
from ..engines.saving import Requested
from ..runner.requests.answer import TokenStep
from ..runner.requests.scoring import Scoring
from ..snapshots import Snapshot
from .deaths import MUTE
from .wire import log_records
from .wire.failures import packed
from .wire.frames import Frame, Kind, Sender, frames
from .wire.opened import Opened, opened
from .wire.setup import (
    Aside,
    BackendClass,
    Count,
    Embed,
    EmbedPicture,
    Encode,
    Forget,
    Generate,
    Look,
    Prepare,
    Report,
    Request,
    Restore,
    SavePrompt,
    SaveRequest,
    Score,
    ScoreTokens,
    Setup,
)

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
    Worker(io.FileIO(requests, closefd=False), Sender(io.FileIO(answers, "w", closefd=False))).serve()


@final
class Worker:
    """Serves one host. The main thread loads the model, another one reads what the host sends."""

    def __init__(self, requests: io.FileIO, host: Sender) -> None:
        self._host, self._frames = host, frames(requests, self._tell_of_life)
        self._told = monotonic()
        self._stop_loading, self._over = Event(), Event()
        self._engine: LocalEngine | None = None
        self._cancel: dict[int, Task] = {}
        # Each has a thread: large results go while the runner goes on, and a question waits for no embedding, for no
        # free sequence, and not until nothing runs.
        self._results: SimpleQueue[Task] = SimpleQueue()
        self._embeddings: SimpleQueue[Task] = SimpleQueue()
        self._questions: SimpleQueue[Task] = SimpleQueue()
        self._snapshots: SimpleQueue[Task] = SimpleQueue()
        self._for_sequences: SimpleQueue[Task] = SimpleQueue()
        self._for_idleness: SimpleQueue[Task] = SimpleQueue()
        self._relays: WeakValueDictionary[int, Relay] = WeakValueDictionary()

    def serve(self) -> None:
        setup = next(self._frames, None)
        if setup is None:
            return
        try:
            _start("backbay requests", self._read)
            _start("backbay results", partial(_do, self._results))
            _start("backbay embeddings", partial(_do, self._embeddings))
            _start("backbay questions", partial(_do, self._questions))
            _start("backbay snapshots", partial(_do, self._snapshots))
            _start("backbay sequences", partial(_do, self._for_sequences))
            _start("backbay idleness", partial(_do, self._for_idleness))
            self._open(pickle.loads(setup.payload))  # noqa: S301  the host wrote it
        except Exception as error:  # noqa: BLE001  the host raises it
            self._host.send(Kind.REFUSED, payload=packed(error))
            _start("backbay end", _end_soon)
            return
        self._over.wait()
        if self._engine is not None:
            self._engine.close()

    def _open(self, setup: Setup) -> None:
        log_records.hand_on(setup.levels, partial(self._host.send, Kind.LOG, 0))
        sight = replace(setup.sight, encoder_backend=_found(setup.sight.encoder_backend))
        guess = replace(setup.guess, draft_backend=_found(setup.guess.draft_backend))
        engine = LocalEngine(
            setup.path, _found(setup.backend), setup.params, setup.sizes, sight, guess, setup.keep
        )
        engine.grammars.tried = True  # by the host
        found = opened(engine) if setup.with_vocabulary else Opened(engine.facts)
        self._host.send(Kind.OPENED, payload=pickle.dumps(found))
        engine.load(
            lambda done: self._host.send(Kind.PROGRESS, payload=pickle.dumps(done)), self._stop_loading
        )
        self._engine = engine
        self._host.send(Kind.READY)

    # -- in the thread that reads ------------------------------------------------------------------------

    def _read(self) -> None:
        """Do what the host asks; end when it is gone, even if the engine hangs."""
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
            self._host.send(Kind.ALIVE)

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.REQUEST and self._engine is not None:
            self._host.send(Kind.BEGUN, frame.number)
            self._begin(self._engine, frame.number, frame.payload)
        elif frame.kind is Kind.CANCEL:
            cancel = self._cancel.get(frame.number)
            if cancel is not None:
                cancel()
        elif frame.kind is Kind.PING:
            self._host.send(Kind.ALIVE)
        elif frame.kind is Kind.STOP_LOADING:
            self._stop_loading.set()

    def _begin(self, engine: LocalEngine, number: int, payload: bytes) -> None:
        try:
            request: Request = pickle.loads(payload)  # noqa: S301  the host wrote it
            if isinstance(request, Generate) and request.options.response_format is not None:
                early = Event()
                self._cancel[number] = early.set
                self._questions.put(partial(self._generate, engine, number, request, early))
            elif isinstance(request, Generate):
                self._generate(engine, number, request)
            elif isinstance(request, Score):
                engine.begin(request.prompt, Scoring, partial(self._receiver, number))
            elif isinstance(request, ScoreTokens):
                make = engine.token_scoring(request.top)
                engine.begin(request.prompt, make, partial(self._receiver, number))
            elif isinstance(request, Look):  # answered at once, whatever else runs
                self._receiver(number, _nothing).succeed(engine.state())
            else:
                cancel = Event()
                receiver = self._receiver(number, cancel.set)
                tasks = self._tasks_of(request)
                tasks.put(partial(self._compute, engine, request, receiver, cancel))
        except Exception as error:  # noqa: BLE001  the request gets it
            self._receiver(number, _nothing).fail(error)

    def _tasks_of(self, request: Aside) -> SimpleQueue[Task]:
        if isinstance(request, SaveRequest):
            return self._snapshots
        if isinstance(request, SavePrompt | Restore):
            return self._for_sequences
        if isinstance(request, Forget):
            return self._for_idleness
        return self._embeddings if isinstance(request, Embed) else self._questions

    def _generate(
        self, engine: LocalEngine, number: int, request: Generate, early: Event | None = None
    ) -> None:
        """Begin an answer; one with a format in another thread, as the first needs seconds for a large vocabulary.

        early   set if the request is cancelled before it has begun
        """
        try:
            make = engine.generation(request.options, request.begin_by)
            engine.begin(request.prompt, make, partial(self._receiver, number))
        except Exception as error:  # noqa: BLE001  the request gets it
            self._receiver(number, _nothing).fail(error)
        if early is not None and early.is_set() and (cancel := self._cancel.get(number)) is not None:
            cancel()

    def _receiver(self, number: int, cancel: Task) -> Relay:
        self._cancel[number] = cancel
        relay = self._relays[number] = Relay(self._host, number, self._cancel, self._results)
        return relay

    # -- in other threads --------------------------------------------------------------------------------

    def _compute(self, engine: LocalEngine, request: Aside, receiver: Relay, cancel: Event) -> None:
        try:
            if isinstance(request, SaveRequest):
                receiver.succeed(self._saved(engine, request))
            else:
                receiver.succeed(_done(engine, request, cancel))
        except Exception as error:  # noqa: BLE001  the request gets it
            receiver.fail(error)

    def _saved(self, engine: LocalEngine, asked: SaveRequest) -> bytes:
        """The bytes of a request's snapshot; none if it is over."""
        relay = self._relays.get(asked.number)
        if relay is None:
            return b""
        found = engine.saves().save_request(Requested(asked.request.prompt, asked.request.options, relay))
        return b"" if found is None else bytes(found.to_bytes())


@final
class Relay:
    """Sends what a request gives to the host. If even an error cannot be sent, the worker ends: nobody waits for ever."""

    def __init__(self, host: Sender, number: int, open: dict[int, Task], large: SimpleQueue[Task]) -> None:
        self._host, self._number, self._open, self._large = host, number, open, large

    def emit(self, step: TokenStep) -> None:
        self._try(self._send, Kind.STEP, pickle.dumps(tuple(step)))

    def succeed(self, result: Any) -> None:
        self._open.pop(self._number, None)
        if not isinstance(result, np.ndarray):
            self._try(self._send_result, result)
            return
        self._large.put(partial(self._try, self._send_array, result))

    def fail(self, error: BaseException) -> None:
        self._open.pop(self._number, None)
        try:
            self._send(Kind.FAILED, packed(error))
        except BrokenPipeError:  # the host is gone, and this process ends
            pass
        except BaseException:  # noqa: BLE001  there is no memory for it
            os._exit(MUTE)

    def after_fork(self, error: BaseException) -> None:
        """Nothing: the pipe is the parent's."""

    def _try(self, send: Callable[..., None], *what: Any) -> None:
        try:
            send(*what)
        except BrokenPipeError:
            pass
        except BaseException as error:  # noqa: BLE001  the request gets it
            self.fail(error)

    def _send_result(self, result: object) -> None:
        self._send(Kind.RESULT, pickle.dumps(result))

    def _send_array(self, array: NDArray[Any]) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self._send(Kind.ARRAY, pickle.dumps((array.shape, array.dtype.str)))
        for at in range(0, len(data), CHUNK):
            self._host.send_part(Kind.BYTES, self._number, data[at : at + CHUNK])

    def _send(self, kind: Kind, payload: bytes) -> None:
        self._host.send(kind, self._number, payload)


def _found(backend: Any) -> Any:
    """A backend as `load` takes it."""
    return backend.found() if isinstance(backend, BackendClass) else backend


def _done(engine: LocalEngine, request: Aside, cancel: Event) -> Any:
    """The result of a request that the runner does not serve."""
    match request:
        case Embed(prompts):
            return engine.embed(prompts, cancel)
        case Prepare(picture):
            return engine.prepare(picture)
        case Encode(parts):
            return engine.encode(parts)
        case EmbedPicture(picture):
            return engine.embed_picture(picture)
        case Count():
            return engine.counters()
        case Report():
            return engine.memory()
        case Forget():
            engine.forget()
            return True
        case SavePrompt(prompt, answer):
            return bytes(engine.saves().save_tokens(prompt, answer).to_bytes())
        case Restore(data):
            engine.restore(Snapshot.from_bytes(data))
            return True


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


def _nothing() -> None:
    pass


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
