"""Processes of workers, for tests."""

from pathlib import Path

from patience import wait_until


def is_running(pid):
    """Whether a process runs; one that only its parent has not heard of yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_gone(pid):
    """Wait until a process has ended."""
    wait_until(lambda: not is_running(pid))
    return True
