"""Soaks of the small models that see: BACKBAY_SOAK=1000 also looks for memory that grows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_vision import KINDS, write_small_vision

import backbay

SOAK = Path(__file__).parents[4] / "lab" / "engine" / "soak.py"
REQUESTS = int(os.environ.get("BACKBAY_SOAK", "20"))


@pytest.mark.parametrize("backend", sorted(backbay.backends()))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(1)
def test_mixed_requests_end_as_alone_and_leave_nothing(tmp_path: Path, kind: str, backend: str) -> None:
    model, projector = write_small_vision(tmp_path, kind)
    command = [sys.executable, SOAK, model, "--backend", backend, "--requests", str(REQUESTS)]
    command += ["--kv-dtype", "f32", "--context", "128"]
    if projector is not None:
        command += ["--projector", projector]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500 + 2 * REQUESTS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
