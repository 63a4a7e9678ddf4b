"""How much memory this process may use, the host's or less in a control group such as a container's, and how much it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from mmap import PAGESIZE
from pathlib import Path
from typing import NamedTuple


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
