"""What /openapi.json allows, and what it does not: no 5xx, no hang, no leak. `make asked` asks 20,000 times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[4] / "lab" / "server" / "property_run.py"


@pytest.mark.fault(
    "requests of any form, also broken ones",
    "an answer or a 400 as /openapi.json describes it, and nothing is left behind",
)
@pytest.mark.thorough
def test_random_requests_find_no_fault() -> None:
    command = [sys.executable, "-W", "error", str(TOOL), "--count", "150"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
