"""The frozen plugin: two backends of a third party that no release may break."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

FROZEN = Path(__file__).parent / "frozen_plugin"
DIGEST = "f5501468047c5412a561b820741f847ce526723a0817c941d2df271a1e2491ca"  # of the files as they were written against contract 1.1


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a process that has the frozen plugin installed."""
    source, site = tmp_path_factory.mktemp("source") / "frozen", tmp_path_factory.mktemp("site")
    copy = "import shutil, sys; shutil.copytree(*sys.argv[1:])"  # building writes beside the sources
    subprocess.run([sys.executable, "-c", copy, FROZEN, source], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", site, source], check=True)
    return {**os.environ, "PYTHONPATH": str(site)}


def backbay(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "backbay", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_nobody_edited_it():
    files = sorted(path for path in FROZEN.rglob("*") if path.suffix in (".py", ".toml"))
    text = b"".join(path.relative_to(FROZEN).as_posix().encode() + path.read_bytes() for path in files)
    assert sha256(text).hexdigest() == DIGEST


@pytest.mark.parametrize("name", ["frozen_kernels", "frozen_graphs"])
def test_it_is_found_and_works(environment: dict[str, str], name: str):
    done = backbay(environment, "list", "--json")
    listed = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert listed[name]["works"], listed[name]["reason"]


@pytest.mark.parametrize("name", ["frozen_kernels", "frozen_graphs"])
def test_it_keeps_the_contract(environment: dict[str, str], name: str):
    done = backbay(environment, "conform", name, "--size", "smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "keeps the contract" in done.stdout
