"""Trials of native libraries: a child process tries one, once on each machine."""

from __future__ import annotations

import platform
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..data.cache_folder import CachedValue
from .helper_processes import run_helper

FAULTS = {
    getattr(signal, name, None) for name in ("SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP")
}
"""Signals of code that this CPU does not run; any other, such as SIGKILL, came from outside."""
NO_MEMORY = "bad_alloc"  # then C++ aborts


def processor() -> str:
    """The model and flags of this machine's CPU, where the system tells them."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    return "\n".join(
        line for line in lines[:40] if line.startswith(("model name", "flags", "microcode", "Features"))
    )


def try_library(
    label: str, library: Path, command: Sequence[str], *, timeout: float, facts: Iterable[object] = ()
) -> str:
    """What a command finds wrong with a library; it prints nothing if that is nothing.

    The answer is remembered for this file, this machine, and other `facts` that it depends on. If the CPU lacks an
    instruction that the library takes for granted, only the command's process dies.
    """
    status = library.stat()
    file = str(library), status.st_size, status.st_mtime_ns
    kept = CachedValue("trials", label, [*file, platform.machine(), processor(), *facts])
    known = kept.recall()
    if isinstance(known, str):
        return known
    found, lasts = _try(command, timeout)
    if lasts:
        kept.keep(found)
    return found


def _try(command: Sequence[str], timeout: float) -> tuple[str, bool]:
    """What a command finds wrong, and whether that lasts."""
    import subprocess

    try:
        done = run_helper(command, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial did not end: {error}", False
    if done.returncode == 0:
        return done.stdout.strip(), True
    last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
    lasts = -done.returncode in FAULTS and NO_MEMORY not in done.stderr
    return f"the trial failed: {last[0]} (exit {done.returncode})", lasts
