"""The host's memory: how much this process may use and holds, and when freed memory goes back to the system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, NamedTuple, final

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # as M_MMAP_THRESHOLD and so on in <malloc.h> of the GNU C library
LARGE, KEPT = 1 << 16, 1 << 22  # bytes


class HostMemory(NamedTuple):
    """Bytes that a process may use in all, and bytes that it can still get; None where the system does not say."""

    total: int | None
    free: int | None


def host_memory(root: Path = Path("/")) -> HostMemory:
    """The smallest of the host's memory and the limits of all control groups around this process."""
    limits = [_host(root), *_control_groups(root)]
    totals = [limit.total for limit in limits if limit.total is not None]
    frees = [limit.free for limit in limits if limit.free is not None]
    return HostMemory(min(totals, default=None), min(frees, default=None))


def _host(root: Path) -> HostMemory:
    """The host's own numbers. Page cache counts as free: the system drops it when memory is asked for."""
    lines = _text(root / "proc/meminfo").splitlines()
    found = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
    if "MemTotal" in found:
        return HostMemory(found["MemTotal"], found.get("MemAvailable", found.get("MemFree")))
    return HostMemory(_pages("SC_PHYS_PAGES"), _pages("SC_AVPHYS_PAGES"))


def _pages(name: str) -> int | None:
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no such function on Windows, no such name on macOS
        return None


def _control_groups(root: Path) -> Iterator[HostMemory]:
    """The limits of the process's control groups, of version 2 and 1, from its own group up to the root's."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mount = root / "sys/fs/cgroup"
        if number == "0" and not controllers:
            yield from _limits(mount, path, "memory.max", "memory.current", "")
            yield from _limits(mount / "unified", path, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
            yield from _limits(mount / "memory", path, limit, used, "total_")


def _limits(mount: Path, path: str, limit: str, used: str, prefix: str) -> Iterator[HostMemory]:
    """The limits of a group and of all groups above it. Page cache counts as free, as on the host."""
    inside = mount / path.lstrip("/")
    # A container often sees its own group as the root: its path is then the host's, and leads nowhere here.
    group = inside if (inside / used).exists() else mount
    while True:
        total = _number(_text(group / limit))
        if total is not None:
            held = _number(_text(group / used)) or 0
            statistics = dict(line.split()[:2] for line in _text(group / "memory.stat").splitlines())
            cache = sum(int(statistics.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
            yield HostMemory(total, max(0, total - held + min(held, cache)))
        if group == mount or mount not in group.parents:
            return
        group = group.parent


def _number(text: str) -> int | None:
    """A number of bytes; None for `max` or nothing."""
    return int(text) if text.strip().isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def anonymous_memory() -> int:
    """Resident bytes that no file backs; 0 where the system does not say."""
    try:
        resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    except OSError:
        return 0
    return (int(resident) - int(shared)) * PAGESIZE


@cache
def _libc() -> Any:
    import ctypes  # takes longer to import than most of core

    return ctypes.CDLL(None) if os.name == "posix" else None


def return_freed_memory() -> None:
    """Hand freed memory back to the system, which then need not take it from others."""
    if hasattr(_libc(), "malloc_trim"):  # only the GNU C library has it
        _libc().malloc_trim(0)


def return_large_blocks() -> None:
    """Let the C library hand freed large blocks back at once, in all of the process.

    By default it raises this limit to 32 MiB, and keeps blocks that a later, aligned allocation seldom fits.
    """
    keep_large_blocks(LARGE)


def keep_large_blocks(below: int) -> None:
    """Let the C library keep freed blocks of up to `below` bytes in all of the process, until `return_large_blocks`."""
    _LIMIT.least = below
    _LIMIT.set(below)


def keep_blocks(*, keeps: bool) -> None:
    """Let the C library keep freed blocks of up to 4 MiB in all of the process, or no large ones.

    After `keep_large_blocks` it keeps at least those. The system clears each page of a block that was handed back.
    Kept blocks may be twice as much as is in use.
    """
    _LIMIT.set(KEPT if keeps else LARGE)


@final
class _Limit:
    """The size from which on the C library hands freed blocks back at once."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.least = LARGE

    def set(self, nbytes: int) -> None:
        nbytes = max(nbytes, self.least)
        if nbytes == self.nbytes or not hasattr(_libc(), "mallopt"):
            return
        lower = nbytes < self.nbytes
        _libc().mallopt(MMAP_THRESHOLD, nbytes)
        _libc().mallopt(TRIM_THRESHOLD, 2 * nbytes)  # of free memory at the heap's end
        self.nbytes = nbytes
        if lower:
            return_freed_memory()


_LIMIT = _Limit()
