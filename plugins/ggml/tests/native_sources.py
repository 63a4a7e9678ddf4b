"""The sources of native code, compiled for tests of both plugins that run it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from backbay_ggml.library.native import ENDING, STEM

SOURCES = Path(__file__).parents[1] / "lib"


def compiled(folder: Path, *options: str) -> Path:
    """A folder with the native code of the sources, compiled anew."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    sources = [str(source) for source in SOURCES.glob("*.cpp")]
    given = ["-std=c++17", "-O2", "-fPIC", "-shared", *options]
    subprocess.run([compiler, *given, *sources, "-o", str(folder / f"{STEM}{ENDING}")], check=True)
    return folder
