"""Trials of arrangements."""

from __future__ import annotations

import signal
import subprocess

import pytest

from backbay import DType
from backbay_ggml.library.library import load_library
from backbay_ggml.weights import arrangements
from backbay_ggml.weights.arrangements import (
    AMX,
    ONE_COLUMN,
    REPACK,
    ArrangementVerdict,
    buffer_types,
    faster_in_llamafile,
    run_trial,
    trial_result,
    usable_arrangements,
)


@pytest.mark.fault("a fast product crashes when it is tried", "the product is not used, and the model loads")
@pytest.mark.skipif(REPACK not in buffer_types(load_library()), reason="this library rearranges no weights")
def test_a_crash_is_a_result_and_is_remembered(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    library, asked = load_library(), []

    def crash(_library, name: str) -> ArrangementVerdict:
        asked.append(name)
        return ArrangementVerdict("signal 11")

    monkeypatch.setattr(arrangements, "run_trial", crash)
    assert [trial_result(library, REPACK).why_not for _ in range(3)] == ["signal 11"] * 3
    assert asked == [REPACK]
    assert usable_arrangements(library) == []


@pytest.mark.skipif(REPACK not in buffer_types(load_library()), reason="this library rearranges no weights")
def test_a_trial_passes_here_and_an_unknown_arrangement_fails(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "nowhere"))
    assert run_trial(load_library(), REPACK).why_not == ""
    assert "KeyError" in run_trial(load_library(), "NO_SUCH_TYPE").why_not


def test_the_trial_of_one_column_tells_dtypes_of_products_that_have_another_form(
    monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    result = run_trial(load_library(), ONE_COLUMN)
    assert result.why_not == ""
    assert set(result.types) <= {"q8_0", "f16", "bf16"}


@pytest.mark.parametrize(
    ("features", "told", "expected"),
    [
        (("LLAMAFILE", "AVX2"), ("q8_0", "f16"), {DType.Q8_0, DType.F16}),
        (("LLAMAFILE", "AVX2"), (), set()),
        (("AVX2",), ("q8_0",), set()),
    ],
)
def test_another_form_pays_where_the_trial_says_so(features, told, expected, monkeypatch) -> None:
    library = load_library()
    monkeypatch.setattr(library, "features", lambda: dict.fromkeys(features, "1"))
    monkeypatch.setattr(arrangements, "trial_result", lambda *_: ArrangementVerdict(types=told))
    assert faster_in_llamafile.__wrapped__(library) == expected


@pytest.mark.fault("the trial of an arrangement of weights is killed", "plain weights; tried again next time")
def test_a_trial_that_was_killed_is_not_remembered(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    ends = iter([-signal.SIGKILL, -signal.SIGILL])
    asked: list[str] = []

    def killed(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[-1])
        return subprocess.CompletedProcess(command, next(ends), "", "")

    monkeypatch.setattr(arrangements, "run_helper", killed)
    library = load_library()
    found = [trial_result(library, AMX).why_not for _ in range(3)]
    assert found == [f"it ended with {name} when it was tried" for name in ("SIGKILL", "SIGILL", "SIGILL")]
    assert asked == [AMX, AMX]


@pytest.mark.fault(
    "a trial of ggml's products takes too long, or gets no memory", "tried again by the next load"
)
@pytest.mark.parametrize(
    ("end", "why"),
    [
        (subprocess.TimeoutExpired([], 120), "without a result"),
        (subprocess.CompletedProcess([], -signal.SIGABRT, "", "what():  std::bad_alloc"), "SIGABRT"),
        (subprocess.CompletedProcess([], 0, "noise", ""), "cannot be read"),
        (FileNotFoundError("no python"), "no python"),
    ],
)
def test_a_trial_without_a_result_is_not_remembered(end, why, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    asked: list[str] = []

    def trial(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[-1])
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(arrangements, "run_helper", trial)
    for _ in range(2):
        assert why in trial_result(load_library(), AMX).why_not
    assert len(asked) == 2


@pytest.mark.parametrize("told", ["", "noise", "[]", "{}"])
def test_output_that_cannot_be_read_is_a_result(told, monkeypatch) -> None:
    ended = subprocess.CompletedProcess([], 0, told, "")
    monkeypatch.setattr(arrangements, "run_helper", lambda *_, **__: ended)
    assert "read" in run_trial(load_library(), REPACK).why_not
