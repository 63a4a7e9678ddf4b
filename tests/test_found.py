"""The faults of docs/reference/found.md: each script still shows what the page says of the installed version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from doc_blocks import ROOT

from backbay_ggml.library.library import load_library

FOUND = ROOT / "lab" / "found"
SCRIPTS = sorted(path.name for path in FOUND.glob("*.py"))
SHOWN, NOT_SHOWN, NOT_INSTALLED = 0, 1, 77
ALWAYS_INSTALLED = ("ggml", "ggml-python", "NumPy", "ONNX Runtime")  # by `make`, and so in CI


def tool(name: str) -> ModuleType:
    """A script in lab/tools as a module."""
    sys.path.insert(0, str(ROOT / "lab" / "tools"))
    try:
        return import_module(name)
    finally:
        sys.path.pop(0)


def ledger() -> ModuleType:
    return tool("found")


def reports() -> ModuleType:
    return tool("found_reports")


FINDINGS = {each.path.name: each for each in ledger().findings()}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def expected(finding: object, version: str) -> int:
    """The outcome in the latest version that was tried and is not newer, else in the oldest."""
    tried = {numbers(each): SHOWN for each in finding.versions("shown")}
    tried |= {numbers(each): NOT_SHOWN for each in finding.versions("right")}
    older = [each for each in tried if each <= numbers(version)]
    return tried[max(older) if older else min(tried)]


@pytest.fixture(scope="module")
def ggml_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the Python of ggml-python, which scripts import, over the libggml that is compiled already."""
    folder = tmp_path_factory.mktemp("ggml_python")
    sdist = subprocess.check_output([sys.executable, ROOT / "plugins/ggml/lib/source.py"], text=True)
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            name = member.name.partition("/")[2]
            member.name = "ggml_python.egg-info/PKG-INFO" if name == "PKG-INFO" else name
            if re.match(r"ggml/.*\.py$|ggml_python.egg-info/", member.name):
                archive.extract(member, folder, filter="data")
    library, libraries = load_library(), folder / "ggml/lib"
    libraries.mkdir()
    for name in ("libggml.so", "libggml-base.so"):
        (libraries / name).symlink_to(library.path.parent / name)
    (libraries / "libggml-cpu.so").symlink_to(library.cpu_code)
    return folder


def run(name: str, ggml_python: Path) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, FOUND / name], {**os.environ, "PYTHONPATH": str(ggml_python)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_page_is_made_from_the_scripts():
    assert ledger().PAGE.read_text() == ledger().page(), "run `make docs`"


def test_a_fault_without_a_thread_has_a_report_to_file():
    texts = reports().texts()
    assert len(texts) > 45
    for path, text in texts.items():
        assert path.read_text() == text, "run `make docs`"
        assert "backbay" not in text.lower(), path.name
        [program] = re.findall(r"```python\n(.*?)```\n", text, re.DOTALL)
        compile(program, path.name, "exec")
    assert sorted(texts) == sorted((FOUND / "reports").glob("*.md"))
    assert sum("## What it prints" in text for text in texts.values()) > 20


def test_a_script_is_short_and_runs_without_backbay():
    for name in SCRIPTS:
        text = (FOUND / name).read_text()
        assert len(text.splitlines()) <= 60, name
        assert not re.search(r"^\s*(import|from) backbay", text, re.MULTILINE), name


def test_a_workaround_is_where_the_page_says():
    for name in SCRIPTS:
        for path, word in FINDINGS[name].workarounds:
            assert word in (ROOT / path).read_text(), f"{name}: {path} has no {word}"


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.thorough
def test_a_fault_is_as_the_page_says(name: str, ggml_python: Path):
    finding, ended = FINDINGS[name], run(name, ggml_python)
    if ended.returncode == NOT_INSTALLED:
        assert "needs" in finding.fields or finding["project"] not in ALWAYS_INSTALLED, ended.stdout
        pytest.skip(ended.stdout.strip())
    assert ended.returncode in (SHOWN, NOT_SHOWN), ended.stdout + ended.stderr
    version = ended.stdout.splitlines()[0].rpartition(" ")[2]
    if ended.returncode == expected(finding, version):
        return
    where = f"{name}, {finding['project']} {version}"
    if ended.returncode == NOT_SHOWN:
        if "timing" in finding.fields:
            pytest.skip(f"{where}: not shown in this run; it comes if {finding['timing']}")
        pytest.fail(
            f"{where}: mended; add the version to `right`, and remove the workaround: {finding['workaround']}"
        )
    pytest.fail(f"{where}: the fault is there; add the version to `shown`\n{ended.stdout}")
