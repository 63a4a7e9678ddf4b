"""A failed scenario names the ops that are wrong, each judged on the operands that it had in the graph."""

from __future__ import annotations

import pytest

from backbay_conformance import Outcome, run


def failures(name: str, profile: str, scenario: str, size: str = "smoke") -> list[Outcome]:
    return run(f"broken_backends:{name}", [profile], ops=[scenario], size=size, stop_after=3).failures


@pytest.mark.parametrize("scenario", ["feed_forward", "sums_and_shared_parts"])
def test_an_op_that_is_wrong_only_at_one_extent_is_named(scenario: str) -> None:
    found = failures("EightTokens", "graph", scenario, "default")
    assert found
    for outcome in found:
        assert outcome.message.endswith("; wrong by themselves: mulmat")


@pytest.mark.parametrize(
    ("name", "op"), [("WrongRope", "rope"), ("WrongSetRows", "set_rows"), ("WrongRows", "rows")]
)
def test_a_failed_cache_names_the_op_that_differs(name: str, op: str) -> None:
    scenarios = ["engine_causal_cache"] if op == "rows" else ["cache_life", "engine_causal_cache"]
    for scenario in scenarios:
        found = failures(name, "cache", scenario, "default" if op == "rows" else "smoke")
        assert found
        for outcome in found:
            assert outcome.message.endswith(f"; wrong by themselves: {op}"), outcome.message
            assert f"{op}: {op}(" in outcome.message


def test_an_op_that_is_wrong_only_beside_others_is_right_by_itself() -> None:
    found = failures("WrongTogether", "graph", "sums_and_shared_parts")
    assert found
    for outcome in found:
        assert "each op is right by itself, but not within the graph: " in outcome.message


def test_a_random_graph_names_the_op_that_differs() -> None:
    found = failures("WrongSetRows", "graph", "random_graph")
    assert found
    assert all("wrong by themselves: set_rows" in outcome.message for outcome in found)


def test_a_backend_is_watched_only_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backbay_conformance.runner.items.item_run.GraphJudge", None)
    assert run("cpu_ref", ["cache"], size="smoke").ok
