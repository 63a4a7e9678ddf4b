"""What other systems lack, taken away: macOS and Windows have not been tried, but nothing that only Linux has is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backbay_engine.text import bounded_task
from backbay_ggml.library.location import locate_library

MISSING = """
import mmap, os, pkgutil, sys
import cffi, gguf, hypothesis, jinja2, numpy, onnx, onnxruntime, platformdirs, pluggy, subprocess, tempfile, tokenizers
from importlib import import_module

for module, names in {
    os: ("posix_fallocate", "register_at_fork", "sched_getaffinity", "sysconf"),
    mmap: ("MADV_DONTNEED", "MADV_WILLNEED"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
sys.modules["fcntl"] = sys.modules["resource"] = None
"""
IMPORT = """
for package in ("backbay", "backbay_conformance", "backbay_cpu_ref", "backbay_engine", "backbay_ggml", "backbay_native",
                "backbay_onnx"):
    for found in pkgutil.walk_packages(import_module(package).__path__, package + "."):
        if "__main__" not in found.name and "test_conformance" not in found.name:
            import_module(found.name)
print("imported")
"""
COMPUTE = """
import backbay
with backbay.open(None, backend=sys.argv[1]) as backend, backend.new_context() as ctx:
    w = ctx.from_floats([[1.0, 2.0], [3.0, 4.0]])
    y = w.mulmat(ctx, ctx.from_floats([1.0, 1.0])).silu(ctx)
    ctx.compute(y)
    print(y.floats().astype(float).round(3).tolist(), backend.devices()[0].id)
"""


def run(program: str, *words: str) -> str:
    environment = {**os.environ, "BACKBAY_NO_CACHE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MISSING + program, *words],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_is_imported_without_what_only_linux_has():
    assert run(IMPORT) == "imported\n"


@pytest.mark.parametrize("backend", ["cpu_ref", "ggml", "onnx"])
@pytest.mark.few(1)
def test_every_backend_computes_without_what_only_linux_has(backend: str):
    assert "[2.858, 6.994]" in run(COMPUTE, backend)


def test_a_system_that_limits_no_address_space_still_runs_chat_templates(monkeypatch: pytest.MonkeyPatch):
    resource = pytest.importorskip("resource")
    asked = []

    def refusing(kind: int, limits: tuple[int, int]) -> None:
        asked.append(kind)
        if kind == resource.RLIMIT_AS:  # as macOS does
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refusing)
    bounded_task._bound_memory(1 << 30)
    assert asked == [resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE]


@pytest.mark.parametrize("name", ["libggml.so", "libggml.dylib", "ggml.dll"])
def test_the_library_is_found_under_the_names_of_each_system(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / name).touch()
    monkeypatch.setenv("BACKBAY_GGML_LIB", str(tmp_path))
    assert locate_library() == tmp_path / name
