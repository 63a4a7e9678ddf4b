"""A soak with all of it at once: guesses, formats, snapshots and kept beginnings. BACKBAY_SOAK=1000 is its full size."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_llama import write_small_llama

import backbay

SOAK = Path(__file__).parents[3] / "lab" / "engine" / "soak.py"
REQUESTS = int(os.environ.get("BACKBAY_SOAK", "40"))


@pytest.mark.parametrize("backend", sorted(backbay.backends()))
@pytest.mark.few(1)
def test_mixed_requests_end_as_alone_with_all_of_it_at_once(tmp_path: Path, backend: str) -> None:
    pytest.importorskip("llguidance")
    model = write_small_llama(tmp_path / "small.gguf")
    command = [sys.executable, SOAK, model, "--all", "--backend", backend, "--requests", str(REQUESTS)]
    command += ["--kv-dtype", "f32", "--context", "160"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500 + 2 * REQUESTS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
