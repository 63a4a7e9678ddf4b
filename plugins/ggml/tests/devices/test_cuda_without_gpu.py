"""ggml's code for CUDA where no GPU is: what doctor tells, and the CPU; `make cuda-compile` compiles the code and runs this."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpus_program import PROGRAM

from backbay_ggml.library.location import VARIABLE, locate_library

COMPILED = Path(os.environ.get("BACKBAY_CUDA", "/nowhere"))  # the folder of lab/devices/cuda_compile.sh
pytestmark = pytest.mark.skipif(
    not (COMPILED / "libggml-cuda.so").exists(), reason="BACKBAY_CUDA names no folder of `make cuda-compile`"
)


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


without_driver = pytest.mark.skipif(_loads("libcuda.so.1"), reason="this machine has a driver of CUDA")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """The installed library, with the code for CUDA beside it."""
    folder = tmp_path_factory.mktemp("library") / "lib"
    shutil.copytree(locate_library().parent, folder)
    shutil.copy(COMPILED / "libggml-cuda.so", folder)
    return folder


def gpus_line(library: Path, *folders: str) -> str:
    """What doctor tells of GPUs if libraries are also in these folders; the CPU has to compute."""
    paths = ":".join(str(COMPILED / folder) for folder in folders)
    environment = {**os.environ, VARIABLE: str(library), "LD_LIBRARY_PATH": paths}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    told, computed = ran.stdout.splitlines()
    assert computed == "['CPU:0'] [3.0, 3.0]"
    return told


def test_the_code_has_cuda_graphs() -> None:
    assert b"USE_GRAPHS" in (COMPILED / "libggml-cuda.so").read_bytes()


@without_driver
@pytest.mark.parametrize("folders", [(), ("toolkit/lib",)])
def test_a_missing_driver_is_named(folders, library) -> None:
    assert gpus_line(library, *folders).startswith("CUDA: its driver is not installed: libcuda.so.1")


def test_a_missing_library_of_cuda_is_told_from_a_missing_driver(library) -> None:
    if _loads("libcublas.so.13"):
        pytest.skip("this machine has CUDA's libraries")
    told = gpus_line(library, "driver")
    assert told.startswith("CUDA: the code for it cannot be loaded: lib")
    assert "LD_LIBRARY_PATH" in told


def test_a_driver_without_a_gpu_says_so(library) -> None:
    assert gpus_line(library, "driver", "toolkit/lib").startswith("CUDA: no driver reports a device")
