"""Trials of native libraries: what is remembered, and what is tried again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from backbay.plugin import try_library

DIES = "import os; os.kill(os.getpid(), {})"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "cache"))
    made = tmp_path / "library.so"
    made.write_bytes(b"code")
    return made


def tried(library: Path, program: str) -> str:
    return try_library("trial", library, [sys.executable, "-c", program], timeout=PATIENCE)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('wrong results')", "wrong results"),
        ("", ""),
        (DIES.format(4), "the trial failed:  (exit -4)"),
        (DIES.format("__import__('signal').SIGTRAP"), "the trial failed:  (exit -5)"),
    ],
    ids=["wrong", "right", "SIGILL", "SIGTRAP"],
)
@pytest.mark.skipif(sys.platform == "win32", reason="the system has no such signals")
def test_a_result_and_a_fault_of_the_code_are_remembered(library: Path, program: str, said: str) -> None:
    assert tried(library, program) == said
    assert tried(library, "print('tried again')") == said


@pytest.mark.parametrize(
    "program",
    [
        DIES.format(9),
        DIES.format(15),
        DIES.format("__import__('signal').SIGBUS"),
        "import os, sys; sys.stderr.write('std::bad_alloc'); sys.stderr.flush(); os.abort()",
        "raise MemoryError",
    ],
    ids=["SIGKILL", "SIGTERM", "SIGBUS", "bad_alloc", "MemoryError"],
)
@pytest.mark.skipif(sys.platform == "win32", reason="the system has no such signals")
def test_a_trial_that_was_killed_or_got_no_memory_is_made_again(library: Path, program: str) -> None:
    assert tried(library, program).startswith("the trial failed")
    assert tried(library, "") == ""
