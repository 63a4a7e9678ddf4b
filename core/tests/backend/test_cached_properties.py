"""Cached properties in programs that fork."""

import os
import signal
import threading

import pytest
from patience import PATIENCE

from backbay.internals import cached_property


class Slow:
    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> int:
        self.begun.set()
        self.go_on.wait(PATIENCE)
        return 1


def test_it_is_computed_once() -> None:
    slow = Slow()
    slow.go_on.set()
    assert slow.value == 1
    slow.begun.clear()
    assert slow.value == 1
    assert not slow.begun.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.fault("the process forks while another thread computes a cached property", "the child goes on")
def test_a_forked_child_waits_for_no_lost_thread() -> None:
    running, other = Slow(), Slow()
    other.go_on.set()
    thread = threading.Thread(target=lambda: running.value)
    thread.start()
    assert running.begun.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        signal.alarm(300)
        os._exit(other.value)
    status = os.waitpid(child, 0)[1]
    running.go_on.set()
    thread.join()
    assert status == 1 << 8, "the child hung"
