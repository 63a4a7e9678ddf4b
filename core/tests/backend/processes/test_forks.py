"""Forks while another thread opens a backend or imports: they wait, and the child goes on."""

import logging
import os
import subprocess
import sys
import threading

import pytest
from moments import interrupt_everywhere
from patience import PATIENCE, wait_until

import backbay
from backbay.backend import helper_processes as forks
from backbay.internals import without_forks

if not hasattr(os, "fork"):
    pytest.skip("this system has no fork", allow_module_level=True)

SLOW = """
import __main__, logging, time
import backbay
from backbay.backend import helper_processes as forks

__main__.importing.set()
while not forks.GATE.forks:  # until the fork waits
    time.sleep(0.001)
logging.getLogger(__name__)  # a hook of its module holds a lock while a fork waits

class Slow(backbay.backends()["cpu_ref"].load()):
    name = "slow"
"""
PROGRAM = """
import os, signal, sys, threading
import backbay
from backbay.backend import helper_processes as forks

sys.path.insert(0, sys.argv[1])
importing, forks.PATIENCE = threading.Event(), 300

def use():
    backbay.open(None, "slow_plugin:Slow").close()

first = threading.Thread(target=use)
first.start()
importing.wait()
child = os.fork()
if child == 0:
    signal.alarm(300)
    use()
    os._exit(0)
print(os.waitpid(child, 0)[1])
first.join()
"""


@pytest.mark.fault(
    "the process forks while another thread opens its first backend", "the child opens one too"
)
def test_a_child_does_not_wait_for_an_import_of_a_lost_thread(tmp_path) -> None:
    (tmp_path / "slow_plugin.py").write_text(SLOW)
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "0\n"


def fork_in_a_thread() -> threading.Thread:
    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    forking = threading.Thread(target=fork)
    forking.start()
    return forking


def test_a_fork_waits_for_the_end_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PATIENCE", PATIENCE)
    with without_forks():
        forking = fork_in_a_thread()
        wait_until(lambda: forks.GATE.forks == 1)
        logging.getLogger("made while a fork waits")
        assert forking.is_alive()
    forking.join(PATIENCE)
    assert not forking.is_alive()


def test_a_fork_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 0.1)
    with without_forks():
        forking = fork_in_a_thread()
        forking.join(PATIENCE)
        assert not forking.is_alive()


def test_a_thread_may_fork_in_its_own_block() -> None:
    with without_forks(), without_forks():
        child = os.fork()
        if child == 0:
            with without_forks():
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_opening_and_computing_go_on_beside_a_fork() -> None:
    """Two backends, each in a thread, while the process forks again and again."""
    errors: list[BaseException] = []
    over = threading.Event()

    def use() -> None:
        try:
            while not over.is_set():
                with backbay.open(None, "cpu_ref") as backend, backend.new_context() as ctx:
                    x = ctx.from_floats([1.0, 2.0], 2)
                    y = x.add(ctx, x)
                    ctx.compute(y)
                    assert y.floats().tolist() == [2.0, 4.0]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        fork_in_a_thread().join(PATIENCE)
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not errors


@pytest.mark.fault("Ctrl-C while forks are kept waiting", "later forks do not wait")
def test_an_interrupt_keeps_no_fork_waiting() -> None:
    def work() -> None:
        with without_forks(), without_forks():
            forks.GATE.let_forks_pass()

    assert interrupt_everywhere(work) > 20
    assert not forks.GATE._inside
