"""Backends that promise equal bits for a row among any others, or with any number of threads, and break the promise."""

from __future__ import annotations

import pytest

from backbay_conformance import run

SCENARIOS = {"rows": "a_row_depends_on_no_other", "threads": "a_row_depends_on_no_thread"}


@pytest.mark.parametrize(
    ("name", "broken", "told"),
    [
        ("Invariant", "", ""),
        ("VariesWithRows", "rows", "rows, and rows"),
        ("VariesWithThreads", "threads", "threads: element"),
    ],
)
def test_a_promise_that_is_broken_by_one_bit_is_told(name: str, broken: str, told: str) -> None:
    report = run(f"broken_backends:{name}", ["core"], ops=list(SCENARIOS.values()))
    assert {outcome.name for outcome in report.failures} == ({SCENARIOS[broken]} if broken else set())
    assert all(told in outcome.message and outcome.check == "bits" for outcome in report.failures)
    assert all(cell.unsupported for cell in report.cells.values())  # attention, which is not promised


def test_what_is_not_promised_is_unsupported() -> None:
    report = run("cpu_ref", ["core"], ops=list(SCENARIOS.values()), size="smoke")
    assert report.counts == {"passed": 0, "failed": 0, "known": 0, "unsupported": 4}
