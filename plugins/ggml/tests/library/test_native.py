"""Native code: found beside libggml, tried in a process of its own, and turned off."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from backbay_ggml.library.native import ATTENTION, ENDING, OFF, STEM, VARIABLE, find_native

FAULTY = """
#include <csignal>
extern "C" const char *backbay_attention_instructions() { return "none"; }
extern "C" void backbay_visible_cells(void *, int, int, void *) { FAULT; }
extern "C" void backbay_attention(void *, int, int, void *) { FAULT; }
extern "C" void backbay_attention_parts(void *, int, int, void *) { FAULT; }
extern "C" void backbay_attention_sum(void *, int, int, void *) { FAULT; }
"""


@pytest.fixture(autouse=True)
def beside_libggml(monkeypatch):
    for variable in (VARIABLE, "BACKBAY_CPU"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("BACKBAY_NO_CACHE", "1")


def faulty(folder: Path, fault: str) -> Path:
    """A library whose attention does not work."""
    (folder / "faulty.cpp").write_text(FAULTY.replace("FAULT", fault))
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    target = folder / f"{STEM}{ENDING}"
    subprocess.run([compiler, "-shared", "-fPIC", str(folder / "faulty.cpp"), "-o", str(target)], check=True)
    return target


def test_code_that_works_is_used(native_file) -> None:
    code = find_native(native_file.parent)
    if code.instructions(ATTENTION) is None:
        pytest.skip("no native code for this processor")
    assert code.why_not(ATTENTION) == ""
    assert code.has(ATTENTION)


@pytest.mark.fault("native code that crashes on this processor", "ggml's own code computes")
def test_only_the_child_process_dies_of_code_that_crashes(tmp_path) -> None:
    faulty(tmp_path, "raise(SIGILL)")
    code = find_native(tmp_path)
    assert "SIGILL" in code.why_not(ATTENTION)
    assert not code.has(ATTENTION)


@pytest.mark.fault("native code that computes wrongly on this processor", "ggml's own code computes")
def test_code_with_wrong_results_is_not_used(tmp_path) -> None:
    faulty(tmp_path, "return")
    code = find_native(tmp_path)
    assert code.why_not(ATTENTION) == "wrong results"
    assert not code.has(ATTENTION)


def test_the_environment_names_a_file_or_turns_native_code_off(native_file, tmp_path, monkeypatch) -> None:
    assert find_native(tmp_path).path is None
    monkeypatch.setenv(VARIABLE, str(native_file))
    assert find_native(tmp_path).path == native_file
    monkeypatch.setenv(VARIABLE, OFF)
    assert find_native(native_file.parent).path is None


def test_a_name_without_a_folder_is_a_file_of_this_folder(tmp_path, monkeypatch) -> None:
    made = faulty(tmp_path, "return")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, made.name)
    code = find_native(tmp_path / "other")
    assert code.path == made


def test_a_trial_is_remembered_for_its_file(native_file, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("BACKBAY_NO_CACHE")
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    code = find_native(native_file.parent)
    found = code.why_not(ATTENTION)
    monkeypatch.setattr(
        "backbay.backend.library_trials.run_helper", lambda *_, **__: pytest.fail("it was tried again")
    )
    again = find_native(native_file.parent)
    assert again.why_not(ATTENTION) == found


@pytest.mark.fault("a damaged library of native code beside libggml", "ggml's own code computes")
def test_a_damaged_library_is_not_used(tmp_path) -> None:
    (tmp_path / f"{STEM}{ENDING}").write_bytes(b"no library")
    assert find_native(tmp_path).path is None
