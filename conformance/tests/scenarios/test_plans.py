"""What only shows in a plan that has lived, or in a message: backends with faults that others planted, and each is told."""

from __future__ import annotations

import pytest

from backbay_conformance import run


@pytest.mark.parametrize(
    ("name", "scenario", "told"),
    [
        ("Stale", "a_plan_stays_right_for_hundreds_of_runs", "run 1"),
        (
            "DropsARun",
            "an_old_plan_runs_after_another_is_refused",
            "the first run after another graph was refused",
        ),
        ("BindsOnce", "two_views_of_one_leaf", "concat"),
        ("Asserts", "limits_and_ends_are_kept", "an unknown value of the option speed: AssertionError"),
        (
            "RefusesWithoutAName",
            "what_makes_blocks_works_or_is_refused_at_once",
            "the error names neither: it cannot",
        ),
    ],
)
def test_a_fault_is_told(name: str, scenario: str, told: str) -> None:
    report = run(f"broken_backends:{name}", ops=[scenario])
    assert report.failures
    assert all(told in outcome.message for outcome in report.failures), report.failures[0].message
    assert run("cpu_ref", ops=[scenario]).ok
