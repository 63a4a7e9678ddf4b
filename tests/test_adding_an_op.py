"""Adding an op: the lines that CONTRIBUTING shows are all that an op takes."""

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from textwrap import dedent, indent

import pytest
from doc_blocks import ROOT

PACKAGES = ("core", "plugins/cpu_ref", "plugins/ggml", "plugins/onnx", "conformance", "apps/engine")
BLOCK = re.compile(r"^ +```python\n +# file: (\S+)\n(.*?)^ +```$", re.MULTILINE | re.DOTALL)
METHODS = "    sqr = method(ops.sqr)\n"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all packages, with the op of CONTRIBUTING."""
    copy = tmp_path_factory.mktemp("workspace")
    for package in PACKAGES:
        copytree(ROOT / package / "src", copy / package / "src", ignore=ignore_patterns("__pycache__"))
    shown = BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(shown) == 7
    for file, lines in shown:
        path, added = copy / file, dedent(lines)
        text = path.read_text()
        if file.endswith("tensor.py"):
            assert METHODS in text
            path.write_text(text.replace(METHODS, METHODS + indent(added, "    ")))
        else:
            path.write_text(f"{text}\n\n{added}")
    return copy


@pytest.mark.parametrize("backend", ["cpu_ref", "ggml", "onnx"])
@pytest.mark.few(1)
def test_the_lines_of_contributing_add_an_op(workspace: Path, backend: str):
    sources = os.pathsep.join(str(workspace / package / "src") for package in PACKAGES)
    command = [sys.executable, "-m", "backbay", "conform", backend, "--op", "cube", "--size", "smoke"]
    environment = {**os.environ, "PYTHONPATH": sources}
    done = subprocess.run(
        command, env=environment, cwd=workspace, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "keeps the contract" in done.stdout
    assert re.search(r"^core +cube +ok", done.stdout, re.MULTILINE), done.stdout
