"""Starved: whatever the system refuses, the user gets an error that names the limit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT
from small_llama import write_small_llama

PIPE = subprocess.PIPE
BACKENDS = ["cpu_ref", "ggml", "onnx"]
MIB = 1 << 20
ANSWER = """
import resource, sys
import numpy
import backbay_engine
from backbay import BackendUnavailableError, NoMemoryError

model, backend, limit, amount = sys.argv[1:]
if limit == "AS":  # beyond what the interpreter takes
    amount = int(amount) + int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
kind = getattr(resource, "RLIMIT_" + limit)
resource.setrlimit(kind, (int(amount), int(amount)))
try:
    with backbay_engine.load(model, backend, context=256) as llm:
        print("answer", len(llm.generate("Once", max_tokens=3, temperature=0).tokens))
except (NoMemoryError, BackendUnavailableError) as error:
    print(type(error).__name__, error)
"""
ABORTS = (
    "OpenBLAS error: Memory allocation",  # NumPy's matrix products
    "cannot allocate memory for thread-local data",  # the C library, on loading a library
    "libgcc_s.so.1 must be installed for",  # the C library, on ending a thread or unwinding
    "libgomp: Thread creation failed",
    "std::bad_alloc",
    "std::system_error",
)
"""What a library says on standard error before it ends the process; docs/reference/faults.md tells of it."""
WAITS_FOR_A_THREAD = re.compile(r'threading\.py", line \d+ in start\n')
"""Where CPython stands that waits for ever for a thread which had no memory to begin (python/cpython#140746)."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "endless.gguf", endless=True)


def starved(model: Path, backend: str, limit: str, amount: int) -> subprocess.CompletedProcess[str]:
    """What a starved process prints; one that hangs is asked where."""
    command = [sys.executable, "-X", "faulthandler", "-c", ANSWER, str(model), backend, limit, str(amount)]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            printed = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            printed = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, *printed)


@pytest.mark.fault(
    "little address space (ulimit -v)",
    "an answer, or an error with the limit; some libraries abort, and CPython may wait for ever for a thread",
)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mib", [4, 8, 16, 32, 64, 160])
@pytest.mark.few(2)
def test_little_address_space(model: Path, backend: str, mib: int) -> None:
    done = starved(model, backend, "AS", mib * MIB)
    if done.returncode:
        aborted = any(text in done.stderr for text in ABORTS)
        assert aborted or WAITS_FOR_A_THREAD.search(done.stderr), done
        return
    assert done.stdout.startswith("answer 3") or "ulimit -v" in done.stdout or "NoMemory" in done.stdout, done


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.few(1)
def test_enough_address_space_is_enough(model: Path, backend: str) -> None:
    assert starved(model, backend, "AS", 2048 * MIB).stdout.startswith("answer 3")


@pytest.mark.fault("few open files (ulimit -n)", "an answer, or BackendUnavailableError with the limit")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("files", [3, 5, 6, 8, 10])
@pytest.mark.few(3)
def test_few_open_files(model: Path, backend: str, files: int) -> None:
    done = starved(model, backend, "NOFILE", files)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("answer 3", "BackendUnavailableError")), done
    if not done.stdout.startswith("answer"):
        assert f"{files} files open (ulimit -n)" in done.stdout


@pytest.mark.fault("a small stack (ulimit -s)", "an answer")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kib", [192, 1024])
@pytest.mark.few(1)
def test_a_small_stack(model: Path, backend: str, kib: int) -> None:
    line = f'ulimit -s {kib}; exec "$@"'
    command = ["sh", "-c", line, "sh", sys.executable, "-c", ANSWER, str(model), backend, "CORE", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.startswith("answer 3"), done


@pytest.mark.fault(
    "an export larger than files may be (ulimit -f)", "an error with the file; nothing is left behind"
)
def test_an_export_that_is_larger_than_files_may_be(tmp_path: Path) -> None:
    tiny = ROOT / "examples" / "models" / "backbay-tiny-f16.gguf"
    line = 'ulimit -f 8; exec "$@"'
    words = ["-m", "backbay", "export", str(tiny), "--backend", "onnx", "-o", str(tmp_path / "out")]
    done = subprocess.run(
        ["sh", "-c", line, "sh", sys.executable, *words],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # Python keeps what it could not write whole
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "out") in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.fault(
    "the folder for temporary files is missing, and every other one", "probes say so; answers come"
)
@pytest.mark.thorough
def test_no_folder_for_temporary_files(model: Path, tmp_path: Path) -> None:
    program = "import tempfile, sys; tempfile.tempdir = '/nowhere'; from backbay.cli.program import console; console()"
    words = ["run", str(model), "-p", "Once", "-n", "3"]
    for backend in BACKENDS:
        command = [sys.executable, "-c", program, *words, "--backend", backend]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "/nowhere" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="the system does not limit root's processes")
@pytest.mark.fault(
    "few processes and threads (ulimit -u)", "an answer, or BackendUnavailableError with the limit"
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_few_threads(model: Path, backend: str) -> None:
    done = starved(model, backend, "NPROC", 1)
    assert done.returncode == 0 or any(text in done.stderr for text in ABORTS), done
    assert done.stdout.startswith(("answer 3", "BackendUnavailableError")), done
