"""The host's memory: how much this process may use and holds, when freed memory goes back, and errors that name a limit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, NamedTuple, final

from ..errors import BackbayError, BackendUnavailableError, reason_of
from .report import human_bytes

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # as M_MMAP_THRESHOLD and so on in <malloc.h> of the GNU C library
LARGE, KEPT = 1 << 16, 1 << 22  # bytes


FILES = (errno.EMFILE, errno.ENFILE)
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Python and the system's loader give these errors no class of their own.
NO_THREAD = ("can't start new thread", "pthread_create", "can't allocate lock")
# From code of Python that got no memory.
NO_REASON = ("without setting an exception", "without exception set")
NO_FILE = "Too many open files"
NOT_MAPPED = ("failed to map segment", "annot allocate memory", "cannot create shared object", "bad_alloc")
MEMORY_LIMITS = (("AS", "-v", "address space"), ("DATA", "-d", "data"))


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


try:
    import resource  # here, as a starved process may be unable to load it
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]


@contextmanager
def naming_limits(doing: str) -> Iterator[None]:
    """Raise BackendUnavailableError if the system refuses what the block needs. Also a decorator."""
    try:
        yield
    except BackbayError:
        raise
    except (MemoryError, OSError, ImportError, RuntimeError, SystemError) as error:
        raise_if_starved(error, doing)
        raise


def raise_if_starved(error: BaseException, doing: str) -> None:
    """Raise BackendUnavailableError, with the limits of this process, if an error says that the system refused."""
    limit = _limit(error)
    if limit is not None:
        raise BackendUnavailableError(f"{doing}: the system refused: {reason_of(error)}{limit}") from error


def _limit(error: BaseException) -> str | None:
    """The limits that may have caused an error; None if it is no sign of starvation."""
    if isinstance(error, BackbayError):
        return None
    text = str(error)
    # Then that is why Python itself fails.
    limited = any(_soft(name) is not None for name, _, _ in MEMORY_LIMITS)
    if (isinstance(error, OSError) and error.errno in FILES) or NO_FILE in text:
        return _said("NOFILE", "this process may have {} files open (ulimit -n)")
    if isinstance(error, OSError) and error.errno in DISK:
        return _said("FSIZE", "a file may have {} (ulimit -f)", human_bytes)
    if (isinstance(error, OSError) and error.errno == errno.EAGAIN) or any(
        sign in text for sign in NO_THREAD
    ):
        return _said("NPROC", "this user may have {} processes and threads (ulimit -u)") + _memory()
    if (
        isinstance(error, MemoryError)
        or (isinstance(error, SystemError) and (any(sign in text for sign in NO_REASON) or limited))
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, (ImportError, OSError)) and any(sign in text for sign in NOT_MAPPED))
    ):  # fmt: skip
        return _memory()
    return None


def _said(name: str, text: str, shown: Callable[[int], str] = str) -> str:
    allowed = _soft(name)
    return "" if allowed is None else f"; {text.format(shown(allowed))}"


def _memory() -> str:
    """The limits of memory that this process has, and how much it uses and the system has left."""
    parts = [
        f"this process may have {human_bytes(allowed)} of {what} (ulimit {option})"
        for name, option, what in MEMORY_LIMITS
        if (allowed := _soft(name)) is not None
    ]
    with suppress(OSError, ValueError, MemoryError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGESIZE
        parts += [f"it has {human_bytes(used)} of address space"] if parts else []
    with suppress(OSError, MemoryError):
        if (free := host_memory().free) is not None:
            parts.append(f"{human_bytes(free)} of the system's memory are free")
    return "".join(f"; {part}" for part in parts)


def _soft(name: str) -> int | None:
    kind = getattr(resource, f"RLIMIT_{name}", None)
    if resource is None or kind is None:
        return None
    found = resource.getrlimit(kind)[0]
    return None if found == resource.RLIM_INFINITY else found
