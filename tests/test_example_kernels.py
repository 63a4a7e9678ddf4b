"""The kernels in examples/kernels are right; each runs where its library is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT

EXAMPLES = sorted(ROOT.glob("examples/kernels/*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_kernel_passes(path: Path) -> None:
    needed = set(re.findall(r"^(?:import|from) (\w+)", path.read_text(), re.MULTILINE))
    if missing := [name for name in sorted(needed) if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
