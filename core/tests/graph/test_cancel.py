"""Cancelling: a library that runs is stopped."""

import _thread
import threading

import pytest
from patience import PATIENCE, wait_until

from backbay.plugin import stop_when_cancelled


class Looks(threading.Event):
    """A flag that counts the looks at it."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return super().is_set()


def test_a_library_is_stopped_once_its_run_is_cancelled():
    cancel, stopped = Looks(), threading.Event()
    with stop_when_cancelled(cancel, stopped.set, poll=0.001):
        wait_until(lambda: cancel.looks >= 3)
        assert not stopped.is_set()
        cancel.set()
        assert stopped.wait(PATIENCE)
    with stop_when_cancelled(None, stopped.clear):
        assert stopped.is_set()


def test_a_run_that_is_over_is_not_stopped():
    cancel, stopped, threads = threading.Event(), [], _thread._count()
    for _ in range(200):
        cancel.clear()
        over: list[bool] = []
        with stop_when_cancelled(cancel, lambda over=over: stopped.append(bool(over)), poll=1e-4):
            cancel.set()
        over.append(True)
    wait_until(lambda: _thread._count() <= threads)
    assert not any(stopped)


@pytest.mark.fault("the system refuses memory to a new thread", "the run goes on, and cannot be cancelled")
def test_a_run_does_not_wait_for_a_thread_that_never_begins(monkeypatch):
    monkeypatch.setattr("_thread.start_new_thread", lambda *_: 0)
    with stop_when_cancelled(threading.Event(), print):
        pass
