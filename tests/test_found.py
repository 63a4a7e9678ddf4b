"""The faults of docs/found.md: each script still shows what the page says of the installed version."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from doc_blocks import ROOT

FOUND = ROOT / "found"
SCRIPTS = sorted(path.name for path in FOUND.glob("*.py"))
SHOWN, NOT_SHOWN, NOT_INSTALLED = 0, 1, 77
ALWAYS_INSTALLED = ("ggml", "ggml-python", "NumPy", "ONNX Runtime")  # by `make`, and so in CI


def ledger() -> object:
    """tools/found.py, which is a script, as a module."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import found
    finally:
        sys.path.pop(0)
    return found


FINDINGS = {each.path.name: each for each in ledger().findings()}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def expected(finding: object, version: str) -> int:
    """The outcome in the latest version that was tried and is not newer, else in the oldest."""
    tried = {numbers(each): SHOWN for each in finding.versions("shown")}
    tried |= {numbers(each): NOT_SHOWN for each in finding.versions("right")}
    older = [each for each in tried if each <= numbers(version)]
    return tried[max(older) if older else min(tried)]


def run(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FOUND / name]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_the_page_is_made_from_the_scripts():
    assert ledger().PAGE.read_text() == ledger().page(), "run `make docs`"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_and_runs_without_backbay(name: str):
    text = (FOUND / name).read_text()
    assert len(text.splitlines()) <= 60
    assert not re.search(r"^\s*(import|from) backbay", text, re.MULTILINE)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_workaround_is_where_the_page_says(name: str):
    for path, word in FINDINGS[name].workarounds:
        assert word in (ROOT / path).read_text(), f"{path} has no {word}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_fault_is_as_the_page_says(name: str):
    finding, ended = FINDINGS[name], run(name)
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
