"""ggml's sources for the build: their version stands in one place, and a missing or changed file is an error that says so."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parents[2]
NAME, VERSION = re.search(r"^(\w+)==([\d.]+) ", (PACKAGE / "source.txt").read_text(), re.MULTILINE).groups()
SDIST = f"{NAME}-{VERSION}.tar.gz"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in ("source.py", "source.txt"):
        shutil.copy(PACKAGE / name, tmp_path)
    return tmp_path


def run(package: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, package / "source.py"]
    return subprocess.run(
        command, env={**os.environ, **environment}, check=False, capture_output=True, text=True
    )


def test_no_other_file_names_the_version_of_the_sources() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.splitlines()]
    made = [path for path in files if path.parent == PACKAGE or path.name in ("Makefile", "dist.py")]
    made += (ROOT / ".github").rglob("*.yml")
    naming = {path.name for path in made if VERSION in path.read_text()}
    assert naming <= {"source.txt"}


@pytest.mark.fault(
    "the wheel of libggml is built without ggml's sources and without network",
    "an error naming the file, its folder and the remedy",
)
def test_without_network_the_missing_file_is_named(package: Path) -> None:
    pytest.importorskip("pip")
    done = run(package, PIP_NO_INDEX="1", PIP_FIND_LINKS="", PIP_CONFIG_FILE=os.devnull)
    assert done.returncode != 0
    assert f"no {SDIST}" in done.stderr
    assert f"Put it into {package}" in done.stderr
    assert not done.stdout


@pytest.mark.fault("ggml's sources were changed", "an error naming both hashes; nothing is built")
def test_sources_with_another_hash_are_refused(package: Path) -> None:
    (package / SDIST).write_bytes(b"other sources")
    done = run(package)
    assert done.returncode != 0
    assert "has the SHA-256" in done.stderr
    assert not done.stdout


def test_sources_that_are_there_need_no_network(package: Path) -> None:
    (package / SDIST).write_bytes(b"sources")
    text = (package / "source.txt").read_text()
    digest = hashlib.sha256(b"sources").hexdigest()
    (package / "source.txt").write_text(re.sub(r"sha256:\w+", f"sha256:{digest}", text))
    done = run(package, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert (done.returncode, done.stdout) == (0, str(package / SDIST))


def test_a_folder_that_is_named_holds_the_sources(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / SDIST).write_bytes(b"other sources")
    done = run(package, BACKBAY_GGML_SOURCES=str(folder))
    assert f"{folder / SDIST} has the SHA-256" in done.stderr


def test_a_pin_without_a_hash_is_refused(package: Path) -> None:
    (package / "source.txt").write_text(f"{NAME}=={VERSION}\n")
    assert "--hash=sha256" in run(package).stderr
