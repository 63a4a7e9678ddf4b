"""Every op has a case, and what cases draw covers what the suite promises."""

from __future__ import annotations

from collections import Counter

import pytest

from backbay import OPS
from backbay_conformance import CASES, SCENARIOS, Draw
from backbay_conformance.runner.plan import (
    PROFILES,
    SelectionError,
    items,
    matches,
    names,
    select,
)

SIDES_AT_EDGES = {0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025}


def test_every_op_has_a_case() -> None:
    assert {name for _, name in CASES} == set(OPS)


def test_every_profile_has_something_to_run() -> None:
    assert {profile for profile, _ in names()} == set(PROFILES)


@pytest.mark.parametrize("key", list(CASES), ids="/".join)
def test_calls_fit_their_op(key: tuple[str, str]) -> None:
    case = CASES[key]
    for turn in range(60):
        call = case.draw(Draw(f"fit/{turn}", turn))
        assert len(call.args) == len(case.op.parameters)
        assert (call.formula is None) != (call.verify is None)
        for operand in call.operands():
            assert operand.layout.shape == operand.shape
        if call.batch is not None:
            assert len(call.batch) == len(list(call.operands()))
        if call.degrees is not None:
            assert len(call.degrees) == len(list(call.operands()))


def test_the_same_seed_draws_the_same_call() -> None:
    case = CASES["core", "mulmat"]
    assert str(case.draw(Draw("7/x", 4))) == str(case.draw(Draw("7/x", 4)))


def test_choices_draw_the_same_call_again() -> None:
    case = CASES["core", "conv2d"]
    draw = Draw("some seed", 5)
    call = case.draw(draw)
    assert str(case.draw(Draw("another", 5, draw.choices))) == str(call)


def test_sides_come_at_every_edge() -> None:
    draw = Draw("sides")
    assert set(SIDES_AT_EDGES) <= {draw.side() for _ in range(3000)}


def test_every_kind_of_layout_is_drawn() -> None:
    seen: Counter[str] = Counter()
    for turn in range(200):
        for operand in CASES["core", "add"].draw(Draw(f"layout/{turn}", turn)).operands():
            seen.update(step.name.split("(")[0] for step in operand.layout.steps)
    assert set(seen) == {"permute", "view", "slice", "duplicate", "repeat"}


def test_modes_and_float_types_come_in_turn() -> None:
    drawn = set()
    for turn in range(9):
        draw = Draw("turn", turn)
        drawn.add((draw.mode, CASES["core", "exp"].draw(draw).dtype))
    assert len(drawn) == 9


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(SelectionError, match="did you mean softmax"):
        select(ops=["sofmax"])
    with pytest.raises(SelectionError, match="no profile 'cor'"):
        select(["cor"])


def test_a_selection_of_nothing_is_refused() -> None:
    with pytest.raises(SelectionError, match="nothing is selected"):
        select(["attention"], expression="conv2d")


@pytest.mark.parametrize(
    ("expression", "holds"),
    [("norm", True), ("norm and not rms", False), ("rms or conv", True), ("not (conv or core)", False)],
)
def test_expressions_select_by_words(expression: str, holds: bool) -> None:
    assert matches(expression, "core/rms_norm") is holds


@pytest.mark.parametrize("expression", ["a b", "and", "(a"])
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(SelectionError):
        matches(expression, "core/add")


def test_items_meet_each_mode_with_each_dtype_even_in_smoke() -> None:
    assert len(items([("core", "add")], "smoke")) == 9


def test_scenarios_run_in_every_size() -> None:
    for scenario in SCENARIOS.values():
        assert scenario.times["smoke"] <= scenario.times["default"] <= scenario.times["nightly"]
