"""The library: ggml takes the code for the CPU that it finds itself on, and any code that runs there computes right."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

CPU_CODE = "libggml-cpu-"
COMPUTE = """
import backbay, numpy as np
from backbay import DType

ERRORS = {DType.F32: 1e-4, DType.F16: 0.02, DType.BF16: 0.2, DType.Q8_0: 0.2, DType.Q4_0: 2.0}
w, x = (np.random.default_rng(1).uniform(-1, 1, (rows, 256)) for rows in (64, 5))
with backbay.open(None, backend="ggml") as backend, backend.new_context() as ctx:
    print(backend.library.cpu_code.name)
    for dtype, error in ERRORS.items():
        y = ctx.empty(dtype, 256, 64).from_floats(w).mulmat(ctx, ctx.from_floats(x))
        ctx.compute(y)
        assert np.abs(y.floats().reshape(5, 64) - x @ w.T).max() < error, dtype
"""


def installed() -> dict[str, Path]:
    """The files of the installed package by their paths in the environment; none if it is not installed."""
    try:
        listed = distribution("backbay-ggml-lib").files or []
    except PackageNotFoundError:
        return {}
    return {str(file): Path(str(file.locate())) for file in listed}


FILES = installed()
VARIANTS = sorted(path.name for path in FILES.values() if path.name.startswith(CPU_CODE))
needs_the_package = pytest.mark.skipif(not FILES, reason="backbay-ggml-lib is not installed")


def compute_with(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BACKBAY_GGML_LIB": str(folder), "BACKBAY_NO_CACHE": "1", "BACKBAY_CPU": ""}
    command = [sys.executable, "-c", COMPUTE]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.few(2)
def test_the_code_for_each_cpu_computes_right_where_it_runs(variant: str, tmp_path: Path) -> None:
    for name, path in FILES.items():
        if path.name == variant or path.name not in VARIANTS:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / name)
    done = compute_with(tmp_path / "backbay_ggml_lib")
    if "has no CPU device" in done.stderr:
        pytest.skip("this CPU lacks its instructions")
    assert (done.returncode, done.stdout) == (0, f"{variant}\n"), done.stderr


@needs_the_package
def test_code_for_a_better_cpu_than_the_simplest_is_taken() -> None:
    done = compute_with(FILES["backbay_ggml_lib/LICENSE.ggml"].parent)
    assert done.returncode == 0, done.stderr
    info = Path("/proc/cpuinfo")
    if info.exists() and "avx2" in info.read_text():
        assert done.stdout.strip() in VARIANTS
        assert "x64" not in done.stdout


@needs_the_package
def test_the_licence_of_ggml_comes_along() -> None:
    assert "The ggml authors" in FILES["backbay_ggml_lib/LICENSE.ggml"].read_text()
