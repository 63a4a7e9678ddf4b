"""Tables fit the terminal: text wraps, numbers do not."""

from __future__ import annotations

import pytest

from backbay.cli.output import table

ROWS = [("alpha", "some words that take much more room than there is", "1"), ("b", "short", "1000")]


def test_columns_are_as_wide_as_they_need_and_numbers_are_on_the_right() -> None:
    assert table(("name", "what", "size"), ROWS, right=(2,), width=200).splitlines() == [
        "name   what                                               size",
        "alpha  some words that take much more room than there is     1",
        "b      short                                              1000",
    ]


def test_the_widest_column_is_wrapped_to_the_width() -> None:
    lines = table(("name", "what", "size"), ROWS, right=(2,), width=40).splitlines()
    assert lines == [
        "name   what                         size",
        "alpha  some words that take much       1",
        "       more room than there is",
        "b      short                        1000",
    ]


def test_numbers_are_never_wrapped_even_if_nothing_fits() -> None:
    lines = table(("", ""), [("a", "1234567890" * 3)], right=(1,), width=20).splitlines()
    assert lines == [f"a  {'1234567890' * 3}"]


def test_the_width_of_the_terminal_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, table(("name", "what", "size"), ROWS).splitlines())) <= 40
    monkeypatch.delenv("COLUMNS")
    assert max(map(len, table(("name", "what", "size"), ROWS).splitlines())) > 40


def test_a_table_without_rows_is_its_titles() -> None:
    assert table(("name", "size"), []) == "name  size"
