"""The memory that this process holds now."""

from __future__ import annotations

import os
from pathlib import Path


def anonymous_memory() -> int:
    """Resident bytes that no file backs; 0 where the system does not say."""
    try:
        resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
