"""Draws can be repeated, and cover the sizes, layouts, modes and types that the suite promises."""

from __future__ import annotations

from collections import Counter

import pytest

from backbay import DType
from backbay_conformance import CASES, Draw
from backbay_conformance.draw.choices import replayed
from backbay_conformance.draw.draw import LISTED_FROM

SIDES_AT_EDGES = {0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025}


def test_the_same_seed_draws_the_same_call() -> None:
    case = CASES["core", "mulmat"]
    assert str(case.draw(Draw("7/x", 4))) == str(case.draw(Draw("7/x", 4)))


def test_choices_draw_the_same_call_again() -> None:
    case = CASES["core", "conv2d"]
    draw = Draw("some seed", 5)
    call = case.draw(draw)
    assert str(case.draw(Draw(replayed(draw.choices)))) == str(call)


def test_sides_come_at_every_edge() -> None:
    draw = Draw("sides")
    assert set(SIDES_AT_EDGES) <= {draw.side() for _ in range(3000)}


def test_every_kind_of_layout_is_drawn() -> None:
    seen: Counter[str] = Counter()
    for turn in range(200):
        for operand in CASES["core", "add"].draw(Draw(f"layout/{turn}", turn)).operands():
            seen.update(step.name.split("(")[0] for step in operand.layout.steps)
    assert set(seen) == {"permute", "view", "slice", "duplicate", "repeat", "neg", "cast", "pad"}


def test_options_by_turn_come_one_after_the_other() -> None:
    assert [Draw("t", turn).by_turn("a", "b", "c") for turn in range(4)] == ["a", "b", "c", "a"]
    assert [Draw("t", turn).by_turn("a", "b", each=2) for turn in range(5)] == ["a", "a", "b", "b", "a"]
    assert Draw(replayed([0, 0, 1]), 2).by_turn("a", "b", "c") == "b"


def test_a_default_run_takes_each_listed_option_once() -> None:
    drawn = [Draw("t", turn).listed("a", "b", "c") for turn in range(90)]
    assert drawn[:LISTED_FROM] == [None] * LISTED_FROM
    assert [option for option in drawn if option] == ["a", "b", "c"]
    assert Draw(replayed([]), LISTED_FROM + 1).listed("a", "b", "c") is None


@pytest.mark.parametrize(
    ("op", "attribute", "values"),
    [
        ("tri", "kind", {"lower-diag", "lower", "upper-diag", "upper"}),
        ("concat", "dim", {0, 1, 2, 3}),
        ("repeat", "dim", {0, 1, 2, 3}),
        ("rope", "mode", {"normal", "neox", "multi-section", "vision"}),
        ("interpolate", "mode", {"nearest", "bilinear"}),
        ("solve_tri", "unit_diagonal", {False, True}),
        ("cast", "dtype", {DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64}),
    ],
)
def test_a_smoke_run_takes_each_value_of_an_attribute(op: str, attribute: str, values: set[object]) -> None:
    case = CASES["core", op]
    at = [parameter.name for parameter in case.op.parameters].index(attribute)
    assert {case.draw(Draw(f"t{turn}", turn)).args[at] for turn in range(9)} == values


def test_modes_and_float_types_come_in_turn() -> None:
    drawn = set()
    for turn in range(9):
        draw = Draw("turn", turn)
        drawn.add((draw.mode, CASES["core", "exp"].draw(draw).dtype))
    assert len(drawn) == 9
