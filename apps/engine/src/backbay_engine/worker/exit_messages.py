"""Why a process died, in words: the signal that killed it, and whether the system was short of memory."""

from __future__ import annotations

import signal
from pathlib import Path

from backbay.internals import exit_name

MUTE = 71  # the exit status of a worker that can no longer say what is wrong

_HINTS = {
    "SIGBUS": "a mapped file, such as the model's, may have been truncated",
    "SIGABRT": "a library gave up; its message is on standard error",
    "SIGXCPU": "its limit of processor time was reached",
}


def end_reason(status: int, kills: int | None, root: Path = Path("/")) -> str:
    """The reason in words, by a process's exit status and the count of `count_memory_kills` when it started."""
    if status == MUTE:
        return "ended: it had no memory left, not even to tell of it"
    child = getattr(signal, "SIGCHLD", None)  # not on Windows
    if status == 0 and child is not None and signal.getsignal(child) is signal.SIG_IGN:
        return "ended; the system does not tell why, as this process ignores SIGCHLD"
    if status >= 0:
        return f"ended with status {status}"
    name = exit_name(status)
    hint = _killed(kills, count_memory_kills(root)) if name == "SIGKILL" else _HINTS.get(name, "")
    return f"was killed by {name}" + (f": {hint}" if hint else "")


def _killed(before: int | None, now: int | None) -> str:
    if before is None or now is None:
        return "perhaps by the system's out-of-memory killer, if memory was short"
    if now > before:
        return "probably by the system's out-of-memory killer, as memory was short"
    return "not by the system's out-of-memory killer, which killed nothing meanwhile"


def count_memory_kills(root: Path = Path("/")) -> int | None:
    """How many processes the system's out-of-memory killer has killed so far; None if the system does not say."""
    try:
        lines = (root / "proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
