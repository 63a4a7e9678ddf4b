"""This machine's processor, as far as the system tells."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """The model and flags of the CPU, where the system tells them."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    return "\n".join(
        line for line in lines[:40] if line.startswith(("model name", "flags", "microcode", "Features"))
    )
