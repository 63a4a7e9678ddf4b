"""The CPU: the cores that this process may use, and the kind of CPU that compiled code is limited to."""

from __future__ import annotations

import os

from ..errors import BackendUnavailableError

VARIABLE = "BACKBAY_CPU"
KINDS = {
    "x86-64": "",
    "avx2": "AVX2",
    "avx512": "AVX-512",
    "avx512-vnni": "AVX-512 with VNNI",
    "amx": "AVX-512 with VNNI",
}
"""The kinds, and the instructions that backbay's native code takes for products on each."""


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


def refuse_other_cpu(library: object, instructions: str) -> None:
    """Refuse native code whose products take other instructions than those of the kind that the environment names."""
    kind = forced_cpu()
    if kind and instructions != KINDS[kind]:
        raise BackendUnavailableError(
            f"{VARIABLE}={kind}, but the code of {library} takes {instructions or 'no special instructions'}: "
            f"this CPU has no others, or the file is too old to heed {VARIABLE}"
        )
