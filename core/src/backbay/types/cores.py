"""The CPU cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores that the system lets this process run on; all cores, where the system does not say."""
    usable = getattr(os, "sched_getaffinity", None)  # neither on macOS nor on Windows
    return len(usable(0)) if usable is not None else os.cpu_count() or 1
