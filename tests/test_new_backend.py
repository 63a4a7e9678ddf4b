"""`backbay new-backend` writes a repository that is green from the first minute, as write-a-backend.md says."""

import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import blocks

[RECIPE] = [block.text for block in blocks("docs/write-a-backend.md") if "new-backend" in block.text]


def commands(first: str) -> list[list[str]]:
    """The commands of the page that begin with these words."""
    return [line.partition("#")[0].split() for line in RECIPE.splitlines() if line.startswith(first)]


@pytest.fixture(scope="module", params=commands("backbay new-backend mine"), ids=["kernels", "graph"])
def python(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A fresh environment with a new backend, which shares the packages of this one."""
    folder = tmp_path_factory.mktemp("newcomer")
    run([sys.executable, "-m", "venv", "--without-pip", "venv"], folder)
    [packages] = folder.glob("venv/lib/python*/site-packages")
    shared = [path for path in sys.path if Path(path).is_dir()]
    (packages / "shared.pth").write_text("\n".join(shared))
    python = folder / "venv" / "bin" / "python"
    run([sys.executable, "-m", *request.param], folder)
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "-e", "backbay-mine"]
    run([python, "-m", "pip", *install], folder)
    return python


def run(command: list, where: Path) -> str:
    ended = subprocess.run(list(map(str, command)), check=False, cwd=where, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.few(1)
def test_its_own_tests_pass(python: Path):
    assert "1 passed" in run([python, "-m", "pytest", "-q"], python.parents[2] / "backbay-mine")


@pytest.mark.few(1)
def test_its_smoke_run_is_green_with_its_known_failures_and_the_rest_unsupported(python: Path):
    [words] = commands("backbay conform mine --size smoke")
    output = run([python, "-m", *words, "--known", "known-failures.txt"], python.parents[2] / "backbay-mine")
    assert "mine: " in output
    assert " 0 failed, 0 known failures, " in output
    assert "keeps the contract (" in output


@pytest.mark.few(1)
def test_the_next_kernel_is_shown_with_its_specification(python: Path):
    [words] = commands("backbay conform mine --next")
    output = run([python, "-m", *words], python.parents[2])
    assert "has 7 kernels\nfor a Llama: rows, set_rows, rope, " in output
    assert "next: x.rows(ctx, ids: Tensor) -> Tensor" in output
    assert "the rows of x with the numbers in ids" in output


def test_nothing_is_missing_in_the_reference():
    output = run([sys.executable, "-m", "backbay", "conform", "cpu_ref", "--next"], Path.cwd())
    assert output.count("nothing is missing") == 3
    assert "next:" not in output
