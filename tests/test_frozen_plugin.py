"""The frozen plugin: two backends of a third party that no release may break."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from shutil import copytree

import pytest

FROZEN = Path(__file__).parent / "frozen_plugin"
DIGEST = "f2c3a863b606ff72cd491f156392c9492253ece3b21b118fd9f48fde22aa96e2"  # of the files as they were written against contract 1.1


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a process that has the frozen plugin installed."""
    source, site = tmp_path_factory.mktemp("source") / "frozen", tmp_path_factory.mktemp("site")
    copytree(FROZEN, source)  # building writes beside the sources
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


def test_it_is_found_and_works(environment: dict[str, str]):
    done = backbay(environment, "list", "--json")
    listed = {entry["name"]: entry for entry in json.loads(done.stdout)}
    for name in ("frozen_kernels", "frozen_graphs"):
        assert listed[name]["works"], listed[name]["reason"]


@pytest.mark.parametrize("name", ["frozen_kernels", "frozen_graphs"])
@pytest.mark.thorough
def test_it_keeps_the_contract(environment: dict[str, str], name: str):
    done = backbay(environment, "conform", name, "--size", "smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "keeps the contract" in done.stdout


def test_its_options_and_its_reports_work(environment: dict[str, str]):
    program = """
import backbay
params = backbay.BackendParams(options={"log": True})
with backbay.open(None, "frozen_kernels", params) as backend, backend.new_context() as ctx:
    x = ctx.from_floats([[1.0, 4.0], [9.0, 16.0]])
    ctx.compute(y := x.sqrt(ctx).add(ctx, x))
    print(y.floats().tolist(), backend.ran)
with backbay.open(None, "frozen_graphs") as backend, backend.new_context() as ctx:
    x = ctx.from_floats([[1.0, 4.0], [9.0, 16.0]])
    for shape in ((2, 2), (4, 1)):
        ctx.compute(x.reshape(ctx, *shape).sqrt(ctx))
        print(*ctx.recording._plan.report(), sep="; ")
    print(len(backend.layouts))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "[2.0, 6.0, 12.0, 20.0] ['sqrt', 'add']",
        "CPU:0 sqrt f32[2,2]: 16 bytes",
        "CPU:0 sqrt f32[2,2]: 16 bytes; CPU:0 sqrt f32[4,1]: 16 bytes",
        "2",
    ], done.stderr
