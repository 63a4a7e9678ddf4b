"""The kind of CPU that an environment variable limits code to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from backbay import BackendUnavailableError
from backbay.internals import forced_cpu, processor, refuse_other_cpu, try_library
from backbay.types.cpu import KINDS, VARIABLE


def test_without_the_variable_any_code_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", None):
        monkeypatch.delenv(VARIABLE) if value is None else monkeypatch.setenv(VARIABLE, value)
        assert forced_cpu() == ""
        refuse_other_cpu("library.so", "any instructions")


@pytest.mark.parametrize("kind", KINDS)
def test_a_library_must_take_the_instructions_of_the_kind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, kind)
    assert forced_cpu() == kind
    for instructions in KINDS.values():
        if instructions == KINDS[kind]:
            refuse_other_cpu("library.so", instructions)
        else:
            with pytest.raises(
                BackendUnavailableError, match=f"{VARIABLE}={kind}, but the code of library.so"
            ):
                refuse_other_cpu("library.so", instructions)


@pytest.mark.fault("BACKBAY_CPU names no kind of CPU", "BackendUnavailableError naming the kinds")
def test_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "avx1024")
    with pytest.raises(
        BackendUnavailableError, match="avx1024 names no kind of CPU; name one of x86-64, avx2, "
    ):
        forced_cpu()


def test_a_trial_for_one_kind_tells_nothing_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "cache"))
    library = tmp_path / "library.so"
    library.write_bytes(b"code")
    tell = [sys.executable, "-c", f"import os; print(os.environ.get({VARIABLE!r}, 'any'))"]
    for _ in range(2):
        for kind in ("any", *KINDS):
            monkeypatch.delenv(VARIABLE, raising=False)
            if kind != "any":
                monkeypatch.setenv(VARIABLE, kind)
                assert processor().endswith(kind)
            assert try_library("trial", library, tell, timeout=300) == kind
