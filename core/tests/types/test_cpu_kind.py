"""The kind of CPU that an environment variable limits code to."""

from __future__ import annotations

import pytest

from backbay import BackendUnavailableError
from backbay.internals import forced_cpu, processor
from backbay.types.cpu import KINDS, VARIABLE


def test_without_the_variable_any_code_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", None):
        monkeypatch.delenv(VARIABLE) if value is None else monkeypatch.setenv(VARIABLE, value)
        assert forced_cpu() == ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_is_asked_for_is_part_of_what_the_processor_is(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, kind)
    assert forced_cpu() == kind
    assert processor().endswith(kind)


@pytest.mark.fault("BACKBAY_CPU names no kind of CPU", "BackendUnavailableError naming the kinds")
def test_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "avx1024")
    with pytest.raises(
        BackendUnavailableError, match="avx1024 names no kind of CPU; name one of x86-64, avx2, "
    ):
        forced_cpu()
