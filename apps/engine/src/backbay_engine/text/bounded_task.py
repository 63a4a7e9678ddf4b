"""A process with limited time and memory: a script that loads a task, reads requests from a pipe and writes answers.

It imports nothing but the task, so that it starts fast and holds nothing worth protecting. A task is a file with a
function `task(setup)`, which returns the function that answers requests.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from runpy import run_path
from typing import Any, BinaryIO

LENGTH = struct.Struct("<Q")


def serve(
    requests: BinaryIO, answers: BinaryIO, task: Callable[[dict[str, Any]], Callable[..., Any]]
) -> None:
    setup = _read(requests)
    if setup is None:
        return
    _bound_memory(setup["memory"])
    answered = task(setup)
    while (request := _read(requests)) is not None:
        _bound_time(setup["seconds"])
        try:
            answer = answered(request)
        except MemoryError:
            answer = {"error": f"it took more than {memory_limit(setup['memory']) >> 20} MiB of memory"}
        _write(answers, answer)
        _bound_time(0)


def _bound_memory(limit: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or hard > limit:
        with suppress(ValueError, OSError):  # macOS may refuse any limit of the address space
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def memory_limit(limit: int) -> int:
    """The memory that this process may have: the limit, or less if the system gives less."""
    try:
        import resource
    except ImportError:
        return limit
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit if soft == resource.RLIM_INFINITY else min(soft, limit)


def _bound_time(seconds: float) -> None:
    """Limit the processor time of this process, also within C code; 0 removes the limit."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the parent process may ignore the signal
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _read(pipe: BinaryIO) -> dict[str, Any] | None:
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    message: dict[str, Any] = json.loads(pipe.read(LENGTH.unpack(head)[0]))
    return message


def _write(pipe: BinaryIO, message: dict[str, str]) -> None:
    body = json.dumps(message).encode()
    pipe.write(LENGTH.pack(len(body)) + body)
    pipe.flush()


if __name__ == "__main__":
    sys.path[:0] = sys.argv[2:]  # the folders of the packages that the task imports
    serve(sys.stdin.buffer, sys.stdout.buffer, run_path(sys.argv[1])["task"])
