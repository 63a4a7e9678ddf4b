"""A plugin in a folder of its own, as a third party writes it, gets exactly the right verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PLUGIN = """
import os
import numpy as np
from backbay import CacheConfig, DType, KernelBackend, backends, hookimpl, ops

Reference = backends()["cpu_ref"].load()


class Theirs(Reference):
    contract_version = 1
    kernels = {
        **{op: kernel for op, kernel in Reference.kernels.items() if op is not ops.sin},
        ops.cos: lambda x: np.cos(x) * 1.01,
        ops.tanh: lambda x: os._exit(3),
    }


@hookimpl
def backbay_backend():
    return Theirs
"""


def test_one_wrong_one_missing_and_one_that_exits(tmp_path: Path) -> None:
    (tmp_path / "their_backend.py").write_text(PLUGIN)
    info = tmp_path / "their_backend-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-backend\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[backbay.backends]\ntheirs = their_backend\n")
    report = tmp_path / "report.json"
    path = ":".join([str(tmp_path), *[entry for entry in sys.path if entry]])
    words = ["theirs", "--size", "smoke", "--op", "sin,cos,tanh,exp", "--json", str(report)]
    program = "import sys\nfrom backbay.cli import main\nsys.exit(main(['conform', *sys.argv[1:]]))"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    cells = json.loads(report.read_text())["cells"]
    states: dict[str, set[str]] = {}
    for cell in cells:
        states.setdefault(cell["name"], set()).add(cell["state"])
    assert states == {"sin": {"unsupported"}, "cos": {"failing"}, "tanh": {"failing"}, "exp": {"full"}}
    assert "the process ended with exit status 3" in done.stdout
