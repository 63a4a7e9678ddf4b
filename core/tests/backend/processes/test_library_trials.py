"""Trials of native libraries: what is remembered, and what is tried again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from backbay.internals import try_library, try_purpose

NATIVE, TRIED = "the faster native code ended with", "when it was tried"
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
        (DIES.format(4), f"{NATIVE} SIGILL {TRIED}; `backbay cache clear trials` lets it be tried again"),
        (
            DIES.format("__import__('signal').SIGTRAP"),
            f"{NATIVE} SIGTRAP {TRIED}; `backbay cache clear trials` lets it be tried again",
        ),
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
    found = tried(library, program)
    assert found.startswith(NATIVE)
    assert found.endswith("; the next process tries it again")
    assert tried(library, "") == ""


TRIALS = """
import os, sys
with open({log!r}, "a") as log:
    print(*sys.argv[1:], file=log)
purposes = sys.argv[1:] or ["first", "second"]
if {fault!r} in purposes:
    os.kill(os.getpid(), 9)
print("wrong" if sys.argv[1:] else '{{"first": "", "second": "wrong"}}')
"""


def tried_for(library: Path, purpose: str, fault: str) -> tuple[str, list[str]]:
    """What is found wrong with a purpose, and the words of each trial so far."""
    log = library.with_suffix(".log")
    command = [sys.executable, "-c", TRIALS.format(log=str(log), fault=fault)]
    found = try_purpose("trial", library, command, purpose, timeout=PATIENCE)
    return found, log.read_text().splitlines()


def test_one_process_tries_all_purposes(library: Path) -> None:
    assert tried_for(library, "first", "") == ("", [""])
    assert tried_for(library, "second", "") == ("wrong", [""])


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no such signals")
def test_after_a_death_each_purpose_is_tried_alone_and_not_all_again(library: Path) -> None:
    assert tried_for(library, "second", "first") == ("wrong", ["", "second"])
    found, trials = tried_for(library, "first", "first")
    assert found.startswith(NATIVE)
    assert trials == ["", "second", "first"]
