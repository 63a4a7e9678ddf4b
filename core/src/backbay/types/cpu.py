"""The CPU: the cores that this process may use, and the kind of CPU that compiled code is limited to."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ..errors import BackendUnavailableError

VARIABLE = "BACKBAY_CPU"
KINDS = ("x86-64", "avx2", "avx2-vnni", "avx512", "avx512-vnni", "amx")


def usable_cores() -> int:
    """The cores that the system lets this process run on; all cores, where the system does not say."""
    usable = getattr(os, "sched_getaffinity", None)  # neither on macOS nor on Windows
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


def forced_cpu() -> str:
    """The kind of CPU that the environment names; empty if it names none."""
    kind = os.environ.get(VARIABLE, "")
    if kind and kind not in KINDS:
        kinds = ", ".join(KINDS)
        raise BackendUnavailableError(f"{VARIABLE}={kind} names no kind of CPU; name one of {kinds}")
    return kind


def processor() -> str:
    """The model and flags of this machine's CPU, where the system tells them, and the kind that code is limited to."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() + forced_cpu()
    lines = info.read_text().splitlines()
    told = [line for line in lines[:40] if line.startswith(("model name", "flags", "microcode", "Features"))]
    return "\n".join(told) + forced_cpu()
