"""Helper processes: Ctrl-C does not reach them, and they end with the process that started them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE, is_running, wait_until

from backbay.internals import kill_helper, run_helper, start_helper

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
HANG = [
    sys.executable,
    "-c",
    "import re; print('begun', flush=True); re.match('(a*)*b', 'a' * 40)",
]  # in C code
PARENT = f"""
import os, subprocess, sys, threading, time
from backbay.plugin import start_helper

def start():
    global child
    child = start_helper({HANG!r}, stdout=subprocess.PIPE)
    child.stdout.readline()

starting = threading.Thread(target=start)  # a thread that ends before its child
starting.start()
starting.join()
if sys.argv[1:] == ["fork"]:
    if os.fork() == 0:
        time.sleep(600)
print(child.pid, flush=True)
while True:  # a signal that the system gives to another thread does not end a sleep of this one
    time.sleep(0.01)
"""


@pytest.fixture
def parent(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process whose helper hangs in C code, and the helper's id."""
    words = [sys.executable, "-c", PARENT, *getattr(request, "param", [])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        if process.poll() is None or getattr(request, "param", []):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.fault("Ctrl-C while a helper process works", "the helper goes on; the program decides")
def test_ctrl_c_does_not_reach_a_helper(parent: tuple[subprocess.Popen[str], int]) -> None:
    process, helper = parent
    os.killpg(process.pid, signal.SIGTSTP)  # Ctrl-Z
    os.killpg(process.pid, signal.SIGCONT)
    assert os.getpgid(helper) != os.getpgid(process.pid)
    assert is_running(helper)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == -signal.SIGINT  # the parent ends by it, and with the parent its helper
    wait_until(lambda: not is_running(helper))


@pytest.mark.fault("the program is killed (kill -9) while its helper hangs in C code", "the helper ends too")
@pytest.mark.parametrize("parent", [[], ["fork"]], indirect=True)
def test_a_helper_ends_with_its_parent_whatever_it_does(parent: tuple[subprocess.Popen[str], int]) -> None:
    process, helper = parent
    assert is_running(helper)
    process.kill()
    wait_until(lambda: not is_running(helper))


def test_a_helper_outlives_the_thread_that_started_it(parent: tuple[subprocess.Popen[str], int]) -> None:
    process, helper = parent
    # Left are the main thread, and the one that starts helpers.
    wait_until(lambda: len(list(Path(f"/proc/{process.pid}/task").iterdir())) <= 2)
    assert is_running(helper)


def test_a_helper_that_nobody_holds_ends() -> None:
    child = start_helper(HANG, stdout=subprocess.PIPE)
    pid = child.pid
    assert child.stdout is not None
    assert child.stdout.readline() == b"begun\n"
    child.stdout.close()
    held = [child]
    del child
    with pytest.warns(ResourceWarning, match="still running"):
        held.clear()
    wait_until(lambda: not is_running(pid))
    subprocess._cleanup()


def test_a_killed_helper_takes_its_own_children_along() -> None:
    program = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
    with start_helper(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        kill_helper(child)
        assert child.wait(PATIENCE) == -signal.SIGKILL
    wait_until(lambda: not is_running(grandchild))
    kill_helper(child)  # a second time does nothing


def test_a_helper_that_another_thread_waits_for_may_end_while_it_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with start_helper([sys.executable, "-c", ""]) as child:
        assert child.wait(PATIENCE) == 0
        monkeypatch.setattr(child, "poll", lambda: None)  # as Popen answers while another thread waits
        kill_helper(child)


def test_a_run_helper_returns_its_output_and_its_status() -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = run_helper([sys.executable, "-c", program], timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_run_helper_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_helper(HANG, timeout=0.5)  # which waits for its end, too


def test_no_descriptor_is_left_open() -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(3):
        run_helper([sys.executable, "-c", ""], timeout=PATIENCE)
    with pytest.raises(OSError, match="nowhere"):
        start_helper(["/nowhere/at/all"])
    gc.collect()
    assert len(list(descriptors.iterdir())) <= before
