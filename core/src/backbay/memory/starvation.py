"""Starvation: if the system refuses memory, a thread, a process or a file, the error names the limit."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
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
# From code of Python that got no memory.
NO_REASON = ("without setting an exception", "without exception set")
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
    """A limit for a message; empty if there is none."""
    allowed = _soft(name)
    return "" if allowed is None else f"; {text.format(shown(allowed))}"


def _memory() -> str:
    """The limits of memory that this process has, and how much it uses and the system has left."""
    parts = [
        f"this process may have {human_bytes(allowed)} of {what} (ulimit {option})"
        for name, option, what in MEMORY_LIMITS
        if (allowed := _soft(name)) is not None
    ]
    with suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGESIZE
        parts += [f"it has {human_bytes(used)} of address space"] if parts else []
    with suppress(OSError, MemoryError):
        if (free := host_memory().free) is not None:
            parts.append(f"{human_bytes(free)} of the system's memory are free")
    return "".join(f"; {part}" for part in parts)


def _soft(name: str) -> int | None:
    """A limit of this process; None if there is none."""
    kind = getattr(resource, f"RLIMIT_{name}", None)
    if resource is None or kind is None:
        return None
    found = resource.getrlimit(kind)[0]
    return None if found == resource.RLIM_INFINITY else found
