"""The size of the host's memory."""

from __future__ import annotations

import os
from typing import NamedTuple


class HostMemory(NamedTuple):
    """The host's memory in bytes: all of it, and the free part."""

    total: int
    free: int


def host_memory() -> HostMemory:
    """Ask the operating system for the host's memory."""
    page = os.sysconf("SC_PAGE_SIZE")
    return HostMemory(os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page)
