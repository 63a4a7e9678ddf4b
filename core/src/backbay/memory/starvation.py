"""Starvation: if the system refuses memory, a thread, a process or a file, the error names the limit."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import PAGESIZE
from pathlib import Path

from ..errors import BackbayError, BackendUnavailableError, reason_of
from .host_memory import host_memory
from .report import human_bytes

try:
    import resource  # here, as a starved process may be unable to load it
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

FILES = (errno.EMFILE, errno.ENFILE)
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Python and the system's loader give these errors no class of their own.
NO_THREAD = ("can't start new thread", "pthread_create", "can't allocate lock")
NO_REASON = (
    "without setting an exception",
    "without exception set",
)  # from code of Python that got no memory
NO_FILE = "Too many open files"
NOT_MAPPED = ("failed to map segment", "annot allocate memory", "cannot create shared object", "bad_alloc")
MEMORY_LIMITS = (("AS", "-v", "address space"), ("DATA", "-d", "data"))


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
    if (isinstance(error, OSError) and error.errno in FILES) or NO_FILE in text:
        return _files()
    if isinstance(error, OSError) and error.errno in DISK:
        return _disk()
    if (isinstance(error, OSError) and error.errno == errno.EAGAIN) or any(
        sign in text for sign in NO_THREAD
    ):
        return _threads() + _memory()
    if (
        isinstance(error, MemoryError)
        or (isinstance(error, SystemError) and (any(sign in text for sign in NO_REASON) or _is_limited()))
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, (ImportError, OSError)) and any(sign in text for sign in NOT_MAPPED))
    ):  # fmt: skip
        return _memory()
    return None


def _files() -> str:
    allowed = _soft("NOFILE")
    return "" if allowed is None else f"; this process may have {allowed} files open (ulimit -n)"


def _disk() -> str:
    allowed = _soft("FSIZE")
    return "" if allowed is None else f"; a file may have {human_bytes(allowed)} (ulimit -f)"


def _threads() -> str:
    allowed = _soft("NPROC")
    return "" if allowed is None else f"; this user may have {allowed} processes and threads (ulimit -u)"


def _memory() -> str:
    """The limits of memory that this process has, and how much it uses and the system has left."""
    used = _address_space()
    parts = [
        f"this process may have {human_bytes(allowed)} of {what} (ulimit {option})"
        for name, option, what in MEMORY_LIMITS
        if (allowed := _soft(name)) is not None
    ]
    if parts and used is not None:
        parts.append(f"it has {human_bytes(used)} of address space")
    free = None
    with suppress(OSError, MemoryError):
        free = host_memory().free
    if free is not None:
        parts.append(f"{human_bytes(free)} of the system's memory are free")
    return "".join(f"; {part}" for part in parts)


def _is_limited() -> bool:
    """Whether this process has a limit of memory: then that is why Python itself fails."""
    return any(_soft(name) is not None for name, _, _ in MEMORY_LIMITS)


def _address_space() -> int | None:
    with suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * PAGESIZE
    return None


def _soft(name: str) -> int | None:
    """A limit of this process; None if there is none."""
    kind = getattr(resource, f"RLIMIT_{name}", None)
    if resource is None or kind is None:
        return None
    found = resource.getrlimit(kind)[0]
    return None if found == resource.RLIM_INFINITY else found
