"""Processes with limited time and memory, for programs and grammars that nobody trusts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Timer
from typing import IO, Any, final

from backbay.internals import kill_helper, start_helper

from . import bounded_task
from .bounded_task import LENGTH, memory_limit


class BoundedProcessError(Exception):
    """The process died over a request, or cannot be started."""


@final
class BoundedProcess:
    """A process that answers the requests of one task, started at the first request. Threads may share one.

    task       the file of the task
    packages   what the task imports, beside Python's own modules
    setup      given to the task
    seconds    of processor time for each request
    memory     bytes of the whole process
    """

    def __init__(
        self, task: Path, packages: Sequence[str], setup: Mapping[str, Any], *, seconds: float, memory: int
    ) -> None:
        self._task, self._packages = task, packages
        self._setup = {**setup, "seconds": seconds, "memory": memory}
        self._lock = Lock()
        self._worker: _Worker | None = None

    def ask(self, request: bytes) -> dict[str, str]:
        """The answer to a request in JSON; BoundedProcessError if the process dies over it."""
        with self._lock:
            worker = self._worker
            if worker is None or not worker.usable():
                worker = self._worker = _Worker(_start(self._task, self._packages), self._setup)
            return worker.ask(request)

    def close(self) -> None:
        """End the process; the next request starts another."""
        with self._lock:
            if self._worker is not None:
                self._worker.end()
                self._worker = None


@final
class _Worker:
    """A running process."""

    def __init__(self, process: subprocess.Popen[bytes], setup: Mapping[str, Any]) -> None:
        self._seconds, self._memory = setup["seconds"], setup["memory"]
        self._process, self._owner = process, os.getpid()
        self.end = weakref.finalize(self, _stop, self._process)
        self._send(json.dumps(setup).encode())

    def usable(self) -> bool:
        """False if the process has died, or if this process was forked from the one that started it."""
        return self._process.poll() is None and self._owner == os.getpid()

    def ask(self, request: bytes) -> dict[str, str]:
        try:
            with _bounded_by_the_clock(self._process, self._seconds):
                self._send(request)
                answer = self._receive()
        except BaseException:  # Ctrl-C: the next request must not read this one's answer
            self.end()
            raise
        if answer is None:
            self.end()
            raise BoundedProcessError(self._death())
        return answer

    def _send(self, message: bytes) -> None:
        pipe = _pipe(self._process.stdin)
        with suppress(BrokenPipeError):  # the process died; there will be no answer
            pipe.write(LENGTH.pack(len(message)) + message)
            pipe.flush()

    def _receive(self) -> dict[str, str] | None:
        pipe = _pipe(self._process.stdout)
        head = pipe.read(LENGTH.size)
        body = pipe.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
        try:
            answer = json.loads(body)
        except ValueError:  # the process died while writing
            return None
        return {key: value for key, value in answer.items() if isinstance(value, str)} or None

    def _death(self) -> str:
        code = self._process.returncode
        took_long = {-getattr(signal, name) for name in ("SIGPROF", "SIGKILL") if hasattr(signal, name)}
        if code in took_long:
            return f"it took more than {self._seconds:g} s"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return f"its process {how}; it may have needed more than {memory_limit(self._memory) >> 20} MiB"


@contextmanager
def _bounded_by_the_clock(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    """Kill the process after this time, on systems where it cannot limit its own processor time."""
    if hasattr(signal, "setitimer"):
        yield
        return
    timer = Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _start(task: Path, packages: Sequence[str]) -> subprocess.Popen[bytes]:
    found = [find_spec(name) for name in packages]
    places = {str(Path(spec.origin).parent.parent) for spec in found if spec is not None and spec.origin}
    script = str(Path(bounded_task.__file__))
    try:
        return start_helper(
            [sys.executable or "", "-I", "-S", script, str(task), *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise BoundedProcessError(f"sys.executable, {sys.executable!r}, cannot be run: {error}") from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            _pipe(pipe).close()
    kill_helper(process)
    process.wait()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # Popen opened both pipes
    return pipe
