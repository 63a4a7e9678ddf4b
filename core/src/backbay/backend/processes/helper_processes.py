"""Helper processes: a terminal's Ctrl-C does not reach them, and none outlives the process that started it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, cast, final
from weakref import finalize

from .forks import close_after_fork

if TYPE_CHECKING:  # subprocess takes longer to import than most of core
    import subprocess


def reporter() -> Callable[..., None]:
    """In a helper process: tells facts as a line of JSON on standard output, which is for these lines alone from now on.

    What plugins, libraries and drivers print there goes to standard error.
    """
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(**facts: object) -> None:
        report.write(json.dumps(facts) + "\n")
        report.flush()

    return tell


def start_helper(
    command: Sequence[str | os.PathLike[str]], *, pass_fds: Sequence[int] = (), **options: Any
) -> subprocess.Popen[bytes]:
    """Start a child process in a session of its own, with the options of `subprocess.Popen`.

    The system kills the child, and the processes that it has started, at the end of this process, whatever ends it,
    and when nothing refers to the returned object any more. On Windows, the child outlives a killed parent if it does
    not read its standard input. A child that is forked from this process does not keep the helper alive.
    """
    import subprocess

    if os.name != "posix":
        flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        return subprocess.Popen[bytes](command, creationflags=flags, **options)
    reading, writing = os.pipe()
    try:
        child: Any = _helper_class()(
            command, start_new_session=True, pass_fds=(*pass_fds, reading), close_fds=True, **options
        )
        _kill_when_closed(reading, child.pid)
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    child.lifeline = _Lifeline(child, writing)
    return cast("subprocess.Popen[bytes]", child)


def run_helper(
    command: Sequence[str | os.PathLike[str]], *, timeout: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a helper to its end, and return its output as text; a helper that takes longer is killed, as in subprocess.run."""
    import subprocess

    streams: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    with start_helper(command, **streams, **options) as child:
        try:
            output, errors = child.communicate(timeout=timeout)
        except BaseException:
            kill_helper(child)
            raise
    texts = (said.decode(errors="replace") for said in (output, errors))
    return subprocess.CompletedProcess(command, child.returncode, *texts)


def kill_helper(child: subprocess.Popen[bytes]) -> None:
    """Kill a helper, and the processes that it has started."""
    if os.name == "posix" and child.poll() is None:
        with suppress(ProcessLookupError):  # it has just ended, and another thread waits for it
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()


@final
class _Lifeline:
    """The writing end of a helper's pipe: the system closes it with this process."""

    def __init__(self, child: subprocess.Popen[bytes], pipe: int) -> None:
        self.close = finalize(child, os.close, pipe)
        close_after_fork(self)

    def after_fork(self, reason: str) -> None:
        self.close()


@cache
def _helper_class() -> Any:
    """The class of helpers, which is made late, as subprocess is imported late."""
    import subprocess

    class Helper(subprocess.Popen[bytes]):
        lifeline: _Lifeline

        def __del__(self) -> None:
            # subprocess keeps a child that still runs, so that the finalizer would wait for its end
            if hasattr(self, "lifeline"):
                self.lifeline.close()
            super().__del__()

    return Helper


def _kill_when_closed(pipe: int, group: int) -> None:
    """Let the system kill a process group when the last writing end of a pipe is closed.

    PR_SET_PDEATHSIG would do so when the thread ends that started the child; a pipe that the child reads would need a
    child that still reads, not one that hangs in a library. Without fcntl, a killed parent leaves its children behind.
    """
    try:
        import fcntl
    except ImportError:
        return
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -group)
    if hasattr(
        fcntl, "F_SETSIG"
    ):  # elsewhere the signal is SIGIO, which ends a process that does not handle it
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
