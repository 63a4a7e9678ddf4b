"""Cancelling: a library that runs is stopped."""

import threading
import time

import pytest

from backbay.plugin import stop_when_cancelled


def test_a_library_is_stopped_once_its_run_is_cancelled():
    cancel, stopped = threading.Event(), threading.Event()
    with stop_when_cancelled(cancel, stopped.set, poll=0.001):
        time.sleep(0.02)
        assert not stopped.is_set()
        cancel.set()
        assert stopped.wait(5)
    with stop_when_cancelled(None, stopped.clear):
        assert stopped.is_set()


def test_a_run_that_is_over_is_not_stopped():
    cancel, stopped = threading.Event(), []
    for _ in range(200):
        cancel.clear()
        over: list[bool] = []
        with stop_when_cancelled(cancel, lambda over=over: stopped.append(bool(over)), poll=1e-4):
            cancel.set()
        over.append(True)
    time.sleep(0.05)
    assert not any(stopped)


@pytest.mark.fault("the system refuses memory to a new thread", "the run goes on, and cannot be cancelled")
def test_a_run_does_not_wait_for_a_thread_that_never_begins(monkeypatch):
    monkeypatch.setattr("_thread.start_new_thread", lambda *_: 0)
    with stop_when_cancelled(threading.Event(), print):
        pass
