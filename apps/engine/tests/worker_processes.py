"""Processes of workers, for tests."""

from patience import is_running, wait_until


def is_gone(pid):
    """Wait until a process has ended."""
    wait_until(lambda: not is_running(pid))
    return True
