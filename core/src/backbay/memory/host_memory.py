"""How much memory the host has."""

from __future__ import annotations

import os
from typing import NamedTuple


class HostMemory(NamedTuple):
    """Bytes of memory that the host has, and that are free."""

    total: int
    free: int


def host_memory() -> HostMemory:
    """What the system says of its memory now."""
    page = os.sysconf("SC_PAGE_SIZE")
    return HostMemory(os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page)
