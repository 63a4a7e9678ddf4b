"""The example backends are written as a third party writes them; their proofs, and those of torch and jax, are the suite's."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from doc_blocks import ROOT

EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/backends/*/pyproject.toml"))
PROVEN = [*EXAMPLES, ROOT / "plugins/torch", ROOT / "plugins/jax"]
DOORS = {"backbay", "backbay.gguf", "backbay.kernels", "backbay.ops", "backbay.plugin"}


def name_of(folder: Path) -> str:
    [name] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"][
        "backbay.backends"
    ]
    return name


@pytest.mark.parametrize("folder", EXAMPLES, ids=name_of)
def test_only_the_public_doors_are_imported(folder: Path):
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    assert {one for one in found if one.split(".")[0].startswith("backbay")} <= DOORS


@pytest.mark.parametrize("folder", PROVEN, ids=name_of)
def test_a_proof_is_one(folder: Path):
    name = name_of(folder)
    path = folder / "proof" / f"{name}-certificate.json"
    if not path.is_file():
        pytest.skip("no certificate yet")
    proof = json.loads(path.read_text())
    assert proof["backend"] == name
    assert proof["size"] in ("default", "nightly")
    assert proof["counts"]["failed"] == proof["counts"]["known"] == 0 < proof["counts"]["passed"]
    assert (folder / "proof" / f"{name}-badge.svg").is_file()


@pytest.mark.parametrize("folder", EXAMPLES, ids=name_of)
def test_some_calls_keep_the_contract(folder: Path):
    name = name_of(folder)
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    module = f"backbay_{name}.backend"
    kind = f"{name.capitalize()}Backend"
    words = [
        "conform",
        f"{module}:{kind}",
        "--size",
        "tiny",
        "--op",
        "mulmat,softmax,rope,set_rows",
        "--timeout",
        "600",
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "backbay", *words],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
