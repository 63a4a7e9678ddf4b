"""The files with the code for CPUs: the best for this CPU, or that for the kind of CPU which the environment names."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from backbay import BackendUnavailableError
from backbay.internals import raise_if_starved

from .abi import NULL
from .native import ENDING

CODE = "libggml-cpu-"  # begins the file with code for one of several kinds of CPUs
NAMES = {
    "x86-64": ("x64",),
    "avx2": ("haswell",),
    "avx512": ("skylakex",),
    "avx512-vnni": ("zen4", "cascadelake"),
    "amx": ("sapphirerapids", "zen4", "cascadelake"),  # without AMX, it is emulated in backbay's native code
}
"""ggml's names for code that a kind of CPU runs, the best first."""


def load_cpu_code(lib: Any, folder: Path, kind: str) -> None:
    """Load the best code for a kind of CPU; BackendUnavailableError if the folder lacks it, or this CPU cannot run it."""
    wanted = [f"{CODE}{name}{ENDING}" for name in NAMES[kind]]
    there = [name for name in wanted if (folder / name).is_file()]
    if any(lib.ggml_backend_load(os.fsencode(folder / name)) != NULL for name in there):
        return
    if there:
        refuse_starvation(folder)
        raise BackendUnavailableError(f"BACKBAY_CPU={kind}: this CPU cannot run {', '.join(there)}")
    others = ", ".join(sorted(file.name for file in folder.glob(f"{CODE}*"))) or "no code for kinds of CPUs"
    raise BackendUnavailableError(
        f"BACKBAY_CPU={kind} needs {' or '.join(wanted)}, and {folder} has {others}; "
        "remedy: `make cpus` in a clone builds the code for all kinds"
    )


def refuse_starvation(folder: Path) -> None:
    """BackendUnavailableError if the system refuses the code for CPUs, of which ggml says nothing."""
    try:
        with os.scandir(folder) as files:  # open while they are loaded, as ggml's own list is
            for file in files:
                if file.name.startswith("libggml-cpu"):
                    ctypes.CDLL(file.path)
    except OSError as error:
        raise_if_starved(error, f"loading {folder}")
