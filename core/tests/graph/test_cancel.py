"""Cancelling: a library that runs is stopped."""

import threading
import time

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
