"""Native code of ours as custom ops of ONNX Runtime. Where it is missing, off, or fails its trial, ONNX Runtime does the work.

The environment variable turns it off with 0, or names another file.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from backbay import DType
from backbay.plugin import CachedValue, raise_if_starved, run_helper

from .runtime import runtime

VARIABLE = "BACKBAY_ONNX_NATIVE"
OFF = "0"
DOMAIN = "backbay"  # of the custom ops
DISTRIBUTION = "backbay-ggml-lib"
STEM = "libbackbay_kernels"
FORMATS = {DType.Q4_0: 0, DType.Q8_0: 2, DType.Q4_K: 3, DType.Q6_K: 5}  # as in products.h
ATTENTION, GATES, PRODUCTS = "attention", "gates", "products"  # purposes
TIMEOUT = 60.0  # seconds
MISSING = f"it is not installed; remedy: pip install {DISTRIBUTION}"


@dataclass(frozen=True)
class NativeCode:
    """A file of custom ops, with the purposes that it serves on this machine."""

    path: Path
    dtypes: frozenset[DType]  # of weights that products take
    attends: bool
    gates: bool  # silu


@cache
def native_code() -> NativeCode | None:
    """The native code that sessions on the CPU use; None if there is none."""
    multiplies, attends, gates = (not why_not_native(purpose) for purpose in (PRODUCTS, ATTENTION, GATES))
    if not (multiplies or attends or gates):
        return None
    path = _found()
    return NativeCode(path, dtypes_of(path) if multiplies else frozenset(), attends, gates)


@cache
def why_not_native(purpose: str) -> str:
    """Why native code does not serve a purpose; empty if it does."""
    if os.environ.get(VARIABLE) == OFF:
        return f"{VARIABLE}={OFF} turns it off"
    path = _found()
    if not path.is_file():
        return MISSING
    try:
        found = instructions(path, purpose)
    except (OSError, AttributeError) as error:
        raise_if_starved(error, f"loading {path}")
        return f"it cannot be loaded: {error}"
    return _tried(path, purpose) if found else "there is none for this processor"


def instructions(path: Path, purpose: str) -> str:
    """The instruction set that this processor runs, of those that a file has code for; empty if there is none."""
    loaded: Any = ctypes.CDLL(str(path))
    _ = loaded.RegisterCustomOps
    ask = getattr(loaded, f"backbay_{purpose}_instructions")
    ask.restype = ctypes.c_char_p
    return (ask() or b"").decode()


def dtypes_of(path: Path) -> frozenset[DType]:
    """The dtypes of weights that products of a file take on this processor."""
    takes = ctypes.CDLL(str(path)).backbay_products_takes
    return frozenset(dtype for dtype, number in FORMATS.items() if takes(number))


def _found() -> Path:
    """The file that the environment names, else that of the installed distribution."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else next(_installed(), Path())


def _installed() -> Iterator[Path]:
    try:
        listed = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        return
    for entry in listed:
        if entry.name.startswith(STEM):
            yield Path(str(entry.locate()))


def _tried(path: Path, purpose: str) -> str:
    """What a trial found, remembered for this file, this ONNX Runtime and this machine."""
    status = path.stat()
    version = runtime().__version__
    facts = [str(path), status.st_size, status.st_mtime_ns, version, platform.machine(), processor()]
    kept = CachedValue("trials", f"onnx-native-{purpose}", facts)
    known = kept.recall()
    if isinstance(known, str):
        return known
    found, lasts = _try(path, purpose)
    if lasts:
        kept.keep(found)
    return found


def _try(path: Path, purpose: str) -> tuple[str, bool]:
    """What a child process finds wrong with the code for a purpose, and whether that lasts.

    If the CPU lacks a promised instruction, only the child dies.
    """
    command = [sys.executable, "-m", "backbay_onnx.session.native_trial", str(path), purpose]
    try:
        done = run_helper(command, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial did not end: {error}", False
    if done.returncode == 0:
        return done.stdout.strip(), True
    last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
    return f"the trial failed: {last[0]} (exit {done.returncode})", done.returncode < 0


def processor() -> str:
    """The model and flags of the CPU, where the system tells them."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()[:40]
    return "\n".join(
        line for line in lines if line.startswith(("model name", "flags", "microcode", "Features"))
    )
