"""Processes of workers, for tests."""

import time
from pathlib import Path


def is_gone(pid, seconds=2.0):
    """Whether a process ends within this time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # only its parent has not heard of it yet
            return True
        time.sleep(0.02)
    return False
