"""The faults of an episode: how each is injected, and which errors of running requests it explains."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backbay import BackbayError, BackendUnavailableError, ClosedError, ModelFileError
from backbay_engine import LLM, TemplateError

if TYPE_CHECKING:
    from host import Host

INHERITED: list[LLM] = []  # a model that a forked child finds in its memory
DEADLY = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM)


@dataclass(frozen=True)
class InjectedFault:
    name: str
    inject: Callable[[Host, random.Random], None]
    errors: tuple[type[BackbayError], ...] = ()  # what requests that run meanwhile may end in


def interrupted(host: Host, rng: random.Random) -> None:
    """Ctrl-C while the main thread waits for an answer; again if Python drops it in the callback of a weak reference."""
    for _ in range(20):
        timer = threading.Timer(rng.random() / 20, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            while timer.is_alive():
                host.llm.generate("sum 1 2 =", max_tokens=40, stop=())
            host.llm.generate("sum 1 2 =", max_tokens=40, stop=())
        except KeyboardInterrupt:
            return
    raise AssertionError("Ctrl-C was dropped 20 times")


def forked(host: Host, rng: random.Random) -> None:
    """A child asks the parent's model."""
    child = os.fork()
    if child == 0:
        try:
            host.llm.generate("sum 1 2 =")
        except ClosedError:
            os._exit(7)
        except BaseException:
            os._exit(8)
        os._exit(9)
    if (status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) != 7:
        raise AssertionError(f"the child ended with {status}, not with ClosedError")


def pooled(host: Host, rng: random.Random) -> None:
    """A pool of forked children asks the parent's model."""
    INHERITED[:] = [host.llm]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            pool.apply_async(ask_inherited).get(5)
        except ClosedError:
            return
    raise AssertionError("a child of a pool got an answer")


def ask_inherited() -> str:
    return INHERITED[0].generate("sum 1 2 =").text


def replaced(host: Host, rng: random.Random) -> None:
    host.restore()


def deleted(host: Host, rng: random.Random) -> None:
    host.path.unlink()
    time.sleep(rng.random() / 5)
    host.restore()


def overwritten(host: Host, rng: random.Random) -> None:
    """Bytes in the midst of the model's file change in place."""
    with host.path.open("r+b") as file:
        file.seek(host.path.stat().st_size // 2)
        file.write(rng.randbytes(1 << 16))
    time.sleep(rng.random() / 5)
    host.reopen()


def cut_short(host: Host, rng: random.Random) -> None:
    """The model's file loses most of its bytes in place."""
    os.truncate(host.path, rng.randrange(1, 1 << 20))
    time.sleep(rng.random() / 5)
    host.reopen()


def reopened(host: Host, rng: random.Random) -> None:
    host.reopen()


def template_killed(host: Host, rng: random.Random) -> None:
    """The process that renders templates dies; the next template is rendered by another."""
    helpers = [child for child in descendants(os.getpid()) if "chat" in command(child)]
    for child in helpers:
        os.kill(child, signal.SIGKILL)
    conversation = [{"role": "user", "content": "sum 1 2 ="}]
    for _ in range(2):
        try:
            host.llm.chat_prompt(conversation)
        except TemplateError:
            continue
        return
    raise AssertionError("templates are not rendered any more")


def worker_killed(host: Host, rng: random.Random) -> None:
    """The process that holds the model dies; the next request starts another."""
    for child in descendants(os.getpid()):
        if "backbay_engine.worker" in command(child):
            os.kill(child, rng.choice(DEADLY))
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            host.llm.generate("sum 1 2 =", max_tokens=2)
        except BackendUnavailableError:
            continue
        return
    raise AssertionError("no new worker within 5 s")


def worker_stopped(host: Host, rng: random.Random) -> None:
    """The process that holds the model stands still for a while."""
    for child in descendants(os.getpid()):
        if "backbay_engine.worker" in command(child):
            os.kill(child, signal.SIGSTOP)
            time.sleep(rng.random())
            os.kill(child, signal.SIGCONT)


def relay_killed(host: Host, rng: random.Random) -> None:
    """The process that speaks to the RPC server dies."""
    for child in descendants(os.getpid()):
        if "backbay_ggml" in command(child):
            os.kill(child, signal.SIGKILL)
    time.sleep(rng.random() / 5)
    host.reopen()


def server_stopped(server: int) -> Callable[[Host, random.Random], None]:
    def inject(host: Host, rng: random.Random) -> None:
        os.kill(server, signal.SIGSTOP)
        time.sleep(rng.random())
        os.kill(server, signal.SIGCONT)

    return inject


def descendants(process: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    found = []
    for thread in Path(f"/proc/{process}/task").iterdir():
        try:
            for child in (thread / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
        except OSError:  # it has ended
            continue
    return found


def command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def faults_of(way: str, server: int | None) -> list[InjectedFault]:
    """The faults that a model which was opened in this way survives."""
    found = [
        InjectedFault("Ctrl-C", interrupted),
        InjectedFault("a forked child asks", forked),
        InjectedFault("a forked pool asks", pooled),
        InjectedFault("the file is replaced", replaced),
        InjectedFault("the file is deleted", deleted),
        InjectedFault("closed and opened again", reopened, (ClosedError,)),
        InjectedFault("the template's process is killed", template_killed),
    ]
    if way == "mapped":
        found.append(InjectedFault("the file is overwritten", overwritten, (ModelFileError, ClosedError)))
    if way in ("copied", "worker"):
        gone = (ClosedError, ModelFileError, BackendUnavailableError)
        errors = gone if way == "worker" else (ClosedError,)
        found += [
            InjectedFault("the file is overwritten", overwritten, errors),
            InjectedFault("the file is cut short", cut_short, errors),
        ]
    if way == "worker":
        found += [
            InjectedFault("the worker is killed", worker_killed, (BackendUnavailableError,)),
            InjectedFault("the worker stands still", worker_stopped),
        ]
    if server is not None:
        lost = (BackendUnavailableError, ClosedError)
        found += [
            InjectedFault("the relay is killed", relay_killed, lost),
            InjectedFault("the server stands still", server_stopped(server)),
        ]
    return found
