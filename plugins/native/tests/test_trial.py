"""Trials of native code: what they find, what is remembered, and what is tried again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from backbay_native import (
    ATTENTION,
    CONVOLUTION,
    EXPERTS,
    FORMATS,
    GATES,
    PRODUCTS,
    RECURRENCE,
    ROWS,
    NativeCode,
    multiply,
    trial_child,
)
from backbay_native.native_code import INSTRUCTIONS, WITH_TILES

PURPOSES = (ATTENTION, CONVOLUTION, EXPERTS, GATES, PRODUCTS, RECURRENCE, ROWS)
FUNCTIONS = (
    "visible_cells attention attention_parts attention_sum convolution gates columns products product_alone "
    "pairs expert_columns expert_products delta_rule selective_scan join pick put"
)
FAULTY = """
#include <csignal>
extern "C" int backbay_products_takes(int) { return 1; }
"""
PURPOSE = 'extern "C" const char *backbay_%s_instructions() { return "none"; }\n'
FUNCTION = 'extern "C" void backbay_%s() { FAULT; }\n'
ENDED = "the faster native code ended with"
TRIED = "when it was tried; `backbay cache clear trials` lets it be tried again"
DIES = "import os; os.kill(os.getpid(), {})"
TRIALS = """
import os, sys
purposes = sys.argv[2:]
with open({log!r}, "a") as log:
    print(*purposes, file=log)
if {fault!r} in (purposes or ["attention", "gates"]):
    os.kill(os.getpid(), 9)
print("wrong" if purposes else '{{"attention": "", "gates": "wrong"}}')
"""
signals = pytest.mark.skipif(sys.platform == "win32", reason="the system has no such signals")


def faulty(folder: Path, fault: str) -> Path:
    """A library whose functions do not work."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, target = folder / "faulty.cpp", folder / "faulty.so"
    named = (PURPOSE % name for name in PURPOSES), (FUNCTION % name for name in FUNCTIONS.split())
    source.write_text(FAULTY + "".join(line for lines in named for line in lines).replace("FAULT", fault))
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    return target


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("BACKBAY_NO_CACHE", "BACKBAY_CPU"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return faulty(tmp_path, "")


def tried(library: Path, monkeypatch: pytest.MonkeyPatch, program: str, purpose: str = ATTENTION) -> str:
    """What a program finds wrong with a purpose of a library."""
    monkeypatch.setattr("backbay_native.native_code.TRIAL", (sys.executable, "-c", program))
    return NativeCode(library).why_not(purpose)


def test_code_that_works_is_used(native_code: NativeCode) -> None:
    code = NativeCode(native_code.path)
    assert {code.why_not(purpose) for purpose in PURPOSES if code.instructions(purpose)} == {""}


@signals
@pytest.mark.fault("native code that crashes on this processor", "ggml's or ONNX Runtime's own code computes")
def test_only_the_child_process_dies_of_code_that_crashes(tmp_path: Path) -> None:
    code = NativeCode(faulty(tmp_path, "raise(SIGILL)"))
    assert "SIGILL" in code.why_not(ATTENTION)
    assert not code.has(ATTENTION)


@pytest.mark.fault(
    "native code that computes wrongly on this processor", "ggml's or ONNX Runtime's own code computes"
)
def test_code_with_wrong_results_is_not_used(library: Path) -> None:
    code = NativeCode(library)
    assert {code.why_not(purpose) for purpose in PURPOSES} == {"wrong results"}
    assert not code.formats


@signals
@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('wrong results')", "wrong results"),
        ("", ""),
        (DIES.format(4), f"{ENDED} SIGILL {TRIED}"),
        (DIES.format("__import__('signal').SIGTRAP"), f"{ENDED} SIGTRAP {TRIED}"),
    ],
    ids=["wrong", "right", "SIGILL", "SIGTRAP"],
)
def test_a_result_and_a_fault_of_the_code_are_remembered(library, monkeypatch, program, said) -> None:
    assert tried(library, monkeypatch, program) == said
    assert tried(library, monkeypatch, "print('tried again')") == said


@signals
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
def test_a_trial_that_was_killed_or_got_no_memory_is_made_again(library, monkeypatch, program) -> None:
    assert tried(library, monkeypatch, program).startswith(ENDED)
    assert tried(library, monkeypatch, "") == ""


def test_one_process_tries_all_purposes(library, monkeypatch, tmp_path) -> None:
    program = TRIALS.format(log=str(tmp_path / "log"), fault="")
    assert tried(library, monkeypatch, program) == ""
    assert tried(library, monkeypatch, program, GATES) == "wrong"
    assert (tmp_path / "log").read_text() == "\n"


@signals
def test_after_a_death_each_purpose_is_tried_alone_and_not_all_again(library, monkeypatch, tmp_path) -> None:
    program = TRIALS.format(log=str(tmp_path / "log"), fault=ATTENTION)
    monkeypatch.setattr("backbay_native.native_code.TRIAL", (sys.executable, "-c", program))
    code = NativeCode(library)
    assert code.why_not(GATES) == "wrong"
    assert code.why_not(ATTENTION).startswith(ENDED)
    assert (tmp_path / "log").read_text().splitlines() == ["", GATES, ATTENTION]


def test_a_trial_for_one_kind_of_cpu_tells_nothing_of_another(library, monkeypatch) -> None:
    program = "import os; print(os.environ.get('BACKBAY_CPU', 'any'))"
    for _ in range(2):
        for kind in ("any", *INSTRUCTIONS):
            if kind != "any":
                monkeypatch.setenv("BACKBAY_CPU", kind)
            assert tried(library, monkeypatch, program) == kind
        monkeypatch.delenv("BACKBAY_CPU")


def test_tiles_are_tried_and_their_time_is_compared_unless_they_are_emulated(
    native_code_with_tiles: NativeCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trial_child.check_tiles(native_code_with_tiles) == ""
    monkeypatch.setattr(trial_child, "EMULATED", "something else")
    monkeypatch.setattr(trial_child, "FASTER", 0.0)
    assert trial_child.check_tiles(native_code_with_tiles).startswith("no faster for q4_0, 16 columns: ")


def test_tiles_with_other_results_are_not_used(
    native_code_with_tiles: NativeCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = FORMATS.index("Q8_0") + WITH_TILES

    def faulty(code, format_, weights, x):
        return multiply(code, format_, weights, x) + np.float32(format_ == wrong and len(x) == 31)

    monkeypatch.setattr(trial_child, "multiply", faulty)
    assert trial_child.check_tiles(native_code_with_tiles) == "other results for q8_0, 31 columns"
