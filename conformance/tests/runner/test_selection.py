"""A run tries what was selected, some of everything first."""

from __future__ import annotations

import pytest

from backbay import OPS
from backbay_conformance import PROFILES
from backbay_conformance.runner.selection import SelectionError, in_rounds, items, matches, names, select
from backbay_conformance.suite.case import CASES
from backbay_conformance.suite.profiles import STANDARD


def test_every_profile_has_something_to_run() -> None:
    assert {profile for profile, _ in names()} == set(PROFILES)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(SelectionError, match=r"did you mean softmax\?; `backbay ops` lists the ops$"):
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


def test_a_run_tries_some_of_everything_before_more_of_anything() -> None:
    planned = items([("core", "add"), ("core", "neg"), ("errors", "wrong_ids_never_run")], "default")
    assert len(set(planned)) == len(planned) == 90 + 90 + 1
    first = {item.name for item in planned[: 9 + 9 + 1]}
    assert first == {"add", "neg", "wrong_ids_never_run"}


def test_a_case_is_drawn_in_the_same_rounds_alone_and_among_others() -> None:
    alone = list(in_rounds(items([("core", "add")], "default")))
    both = in_rounds(items([("core", "add"), ("core", "neg")], "default"))
    assert alone == [planned for planned in both if planned[0].name == "add"]
    assert [len(planned) for planned in alone] == [9, 27, 54]


def test_a_tiny_run_has_at_most_100_calls_of_every_family_and_profile() -> None:
    tiny = items(select(), "tiny")
    assert len(tiny) <= 100
    assert {item.profile for item in tiny} == set(STANDARD)
    families = {
        CASES[item.profile, item.name].op.family for item in tiny if (item.profile, item.name) in CASES
    }
    assert families == {op.family for op in OPS.values()}
