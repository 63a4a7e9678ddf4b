"""The native code of the sources, for tests.

The installed library is taken if it is as new as the sources. All else is compiled once, and kept for later runs. As a
program, it prints the file whose AMX is emulated.
"""

from __future__ import annotations

import faulthandler
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from backbay_native import OFF
from backbay_native.native_code import STEM, installed_file

VARIABLE = "BACKBAY_GGML_NATIVE"
SOURCES = Path(__file__).parents[1] / "cpp"
BUILD = Path(__file__).with_name("build")  # git ignores it
EMULATED_TILES = "-DBACKBAY_EMULATED_TILES"
EMULATED_AVX_VNNI = "-DBACKBAY_EMULATED_AVX_VNNI"
EMULATED_PRODUCTS = Path(__file__).with_name("emulated_products.cpp")
EMULATION = ("-O1", "-mavx2", "-mfma", "-mf16c", "-fpermissive")
SIMDE = [Path(folder, "simde/x86/avx512.h") for folder in ("/usr/include", "/usr/local/include")]


def native_library() -> Path:
    """The file with the native code of the sources, or the one that the environment names."""
    if os.environ.get(VARIABLE, OFF) != OFF:
        return Path(os.environ[VARIABLE])
    path, newest = installed_file(), max(source.stat().st_mtime for source in sources())
    return path if path and path.is_file() and path.stat().st_mtime >= newest else compiled()


def emulated_products() -> Path:
    """The products of processors with AVX-512, which each processor with AVX2 runs."""
    if not any(header.is_file() for header in SIMDE):
        pytest.skip("no SIMDe, Debian's libsimde-dev")
    return compiled(*EMULATION, files=[EMULATED_PRODUCTS])


def compiled(*options: str, files: Iterable[Path] | None = None) -> Path:
    """The native code of the sources, or of a file, compiled with options; other processes wait for the first."""
    files = sorted(SOURCES.glob("*.cpp")) if files is None else list(files)
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-w", *options]
    state = [source.read_bytes() for source in sorted({*sources(), *files})]
    name = hashlib.sha256(repr([command, state]).encode()).hexdigest()[:16]
    target = BUILD / name / f"{STEM}.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    faulthandler.cancel_dump_traceback_later()  # a busy machine compiles for longer than a test may hang
    with (BUILD / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            made = target.with_suffix(".new")
            subprocess.run([*command, *files, "-o", made], check=True)
            made.rename(target)
    return target


def sources() -> list[Path]:
    return sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])


if __name__ == "__main__":
    sys.stdout.write(f"{compiled(EMULATED_TILES)}\n")
