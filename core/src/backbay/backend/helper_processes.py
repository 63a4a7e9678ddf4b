"""Forks and helper processes.

Forks wait for what a child could not finish; in a child, all that the parent opened is closed, never freed. Helpers get no
Ctrl-C of a terminal, and none outlives the process that started it.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  see PATIENCE
import json
import logging  # noqa: F401
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from threading import Condition, RLock, get_ident
from typing import TYPE_CHECKING, Any, Protocol, cast, final
from weakref import WeakSet, finalize

if TYPE_CHECKING:  # subprocess takes longer to import than most of core
    import subprocess

# Before a fork, the hooks that were registered last run first. Those of `logging` and `concurrent.futures` take locks,
# which a thread that keeps forks waiting may need: they are imported above, so that their hooks run after the gate's.
PATIENCE = 30.0  # seconds that a fork waits at most, as other hooks may take locks too

REASON = "; it was opened before a fork: load it in the child process, or start the child by spawn"


_opened: WeakSet[Any] = WeakSet()


class ForkListener(Protocol):
    """An object that stops working in a forked child: its threads and locks stay behind in the parent."""

    def after_fork(self, reason: str) -> None:
        """Become closed, without waiting for a lock, and without freeing native memory.

        Messages of later errors end with the reason.
        """


def close_after_fork(opened: ForkListener) -> None:
    """Call `opened.after_fork(reason)` in every child that this process forks from now on."""
    _opened.add(opened)


def never_free(thing: object) -> None:
    """Let a thing, and all that it refers to, outlive the interpreter: freeing it would wait for lost threads."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class ForkLock:
    """Keeps forks apart from kernels over arrays, imports, and the locks of libraries.

    A process that forks stops the threads of NumPy's BLAS first. A product that another thread runs just then waits for
    ever for these threads, and so does the fork. A module that another thread imports, and a lock that it holds, stay
    so in the child for ever.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # taken as such: Ctrl-C may leave a Condition locked that is entered itself
        self._changed = Condition(self._lock)
        self._inside: dict[int, int] = {}  # threads that keep forks waiting, and how many blocks each is in
        self.forks = 0  # that wait, or are under way

    @contextmanager
    def without_forks(self) -> Iterator[None]:
        """A block, or a decorated function, that imports, or takes locks of the process: forks of other threads wait.

        It must be short, or call `let_forks_pass`, and must not wait for a thread that may fork.
        """
        lock, thread, inside = self._lock, get_ident(), False
        try:
            with lock:
                self._changed.wait_for(lambda: not self.forks or thread in self._inside)
                self._inside[thread] = self._inside.get(thread, 0) + 1
                inside = True
            yield
        finally:
            if inside:
                with lock:  # no call before the change, or Ctrl-C could come first
                    if thread in self._inside:  # else Ctrl-C came while forks passed
                        if self._inside[thread] > 1:
                            self._inside[thread] -= 1
                        else:
                            del self._inside[thread]
                            self._changed.notify_all()

    def let_forks_pass(self) -> None:
        """Between two kernels: wait for the forks that wait for this thread."""
        thread = get_ident()
        with self._lock:
            # Kernels inside a larger block of this thread, which keeps forks waiting, let none pass.
            if self._inside.get(thread) == 1:
                del self._inside[thread]
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self.forks)
                self._inside[thread] = 1

    def before_fork(self) -> None:
        thread = get_ident()
        with self._lock:
            self.forks += 1
            self._changed.wait_for(lambda: self._inside.keys() <= {thread}, PATIENCE)  # a kernel may fork

    def after_fork_in_parent(self) -> None:
        with self._lock:
            self.forks -= 1
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Only the thread that forked is here; it may be in the midst of a block."""
        thread = get_ident()
        self._lock = RLock()
        self._changed, self.forks = Condition(self._lock), 0
        self._inside = {thread: self._inside[thread]} if thread in self._inside else {}
        for opened in list(_opened):
            opened.after_fork(REASON)


GATE = ForkLock()
without_forks = GATE.without_forks

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=GATE.before_fork,
        after_in_parent=GATE.after_fork_in_parent,
        after_in_child=GATE.after_fork_in_child,
    )


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


OF_THE_CODE = {getattr(signal, name, None) for name in ("SIGILL", "SIGSEGV", "SIGFPE", "SIGABRT", "SIGTRAP")}
"""Signals that code brings upon itself, and will again, as where the CPU lacks an instruction.

SIGTRAP is one of them: what a compiler puts where code must not come raises it on some CPUs, SIGILL on others. SIGBUS is
none: it comes from a mapped file that is cut or cannot be read, from a full /dev/shm, and from memory that fails. Few
CPUs raise it for code alone, and another trial costs less than a wrong verdict that stays. Any other comes from outside:
SIGKILL where the system has no memory left, SIGTERM, SIGINT and SIGHUP from users.
"""
NO_MEMORY = ("bad_alloc", "MemoryError", "OutOfDeviceMemory", "OutOfHostMemory", "out of memory")
"""Parts of what a child says that gets no memory, such as before C++ aborts."""


def ended_from_outside(status: int, said: str) -> bool:
    """Whether a child ended for no fault of the code that it tried; then it may not end so again.

    `status` is its exit status, negative for a signal; `said` is what it said at its end.
    """
    return any(text in said for text in NO_MEMORY) or (status < 0 and -status not in OF_THE_CODE)


def exit_name(status: int) -> str:
    """The name of an exit status: the signal that ended the process, such as `SIGILL`, else `exit status 1`."""
    try:
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"
    except ValueError:
        return f"signal {-status}"


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
