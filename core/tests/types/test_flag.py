"""A flag: threads that wait for it go on when it is set, each of them, and time limits hold."""

import threading

import pytest
from patience import PATIENCE

from backbay.internals import InterruptSafeEvent


def test_a_flag_that_is_set_lets_everybody_pass() -> None:
    flag = InterruptSafeEvent()
    assert not flag.is_set()
    flag.set()
    assert flag.is_set()
    assert flag.wait()
    assert flag.wait(0)
    flag.clear()
    assert not flag.is_set()


@pytest.mark.parametrize("seconds", [-1, 0, 0.01])
def test_waiting_ends_after_the_limit(seconds) -> None:
    flag = InterruptSafeEvent()
    assert not flag.wait(seconds)
    assert not flag._waiting


def test_all_waiting_threads_go_on() -> None:
    flag, passed = InterruptSafeEvent(), []
    threads = [threading.Thread(target=lambda: passed.append(flag.wait(PATIENCE))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert not passed
    for _ in range(2):  # setting it again does no harm
        flag.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert passed == [True] * 8
    assert not flag._waiting


def test_no_wakeup_is_lost() -> None:
    for _ in range(2000):
        flag = InterruptSafeEvent()
        setter = threading.Thread(target=flag.set)
        setter.start()
        assert flag.wait(PATIENCE)
        setter.join()
