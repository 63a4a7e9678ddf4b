"""Guesses from the text itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backbay_engine.runner.speculation.ngrams import LENGTHS, NgramSource, NgramTracker

TEXTS = st.lists(st.integers(0, 4), max_size=60)


def test_what_followed_the_last_tokens_is_guessed() -> None:
    guesses = NgramTracker([1, 2, 3, 4, 5, 6, 1, 2, 3])
    assert guesses.next(3) == [4, 5, 6]
    assert guesses.hope() > 0


def test_the_latest_place_counts() -> None:
    assert NgramTracker([1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3]).next(1) == [8]


def test_a_text_that_repeats_itself_is_guessed_beyond_its_end() -> None:
    assert NgramTracker([1, 2, 1, 2]).next(5) == [1, 2, 1, 2, 1]


def test_a_text_without_repetition_gives_no_guess() -> None:
    guesses = NgramTracker(list(range(30)))
    assert (guesses.next(4), guesses.hope()) == ([], 0.0)


def test_a_longer_agreement_gives_more_hope() -> None:
    text = list(range(20))
    hopes = [NgramTracker([*text, *text[5 : 5 + n]]).hope() for n in (2, 3, 6, 10)]
    assert hopes == sorted(set(hopes))


def test_hope_falls_where_guesses_are_wrong_and_rises_where_they_are_right() -> None:
    wrong, right = NgramTracker([1, 2]), NgramTracker([1, 2])
    before = NgramTracker([1, 2, 0, 1, 2]).hope()
    for n in range(20):
        for token in (n + 10, 1, 2):
            wrong.learn(token)
        for token in (9, 1, 2):
            right.learn(token)
    assert wrong.hope() < before / 2
    assert right.hope() > before


@given(TEXTS, TEXTS)
def test_learning_a_text_is_knowing_it(known: list[int], learned: list[int]) -> None:
    guesses = NgramTracker(known)
    for token in learned:
        guesses.learn(token)
    whole = known + learned
    found = guesses.next(8)
    assert bool(found) == (guesses.hope() > 0)
    if found:  # an earlier place of the end of the text goes on like this
        repeats = [whole[-n:] for n in LENGTHS if len(whole) >= n]
        assert any(
            [*whole, *found][at + len(end) :][:8] == found
            for end in repeats
            for at in range(len(whole) - len(end))
            if whole[at : at + len(end)] == end
        )


@pytest.mark.parametrize("count", [0, 1, 7])
def test_no_more_is_guessed_than_asked_for(count: int) -> None:
    assert len(NgramTracker([1, 2, 1, 2]).next(count)) == count


def test_an_answer_begins_with_the_chances_of_earlier_answers() -> None:
    source, text = NgramSource(), [1, 2, 0, 1, 2]
    before = source.guesses(text).hope()
    for _ in range(20):
        source.guesses(text).learn(7)
    assert source.guesses(text).hope() < before / 2
    for _ in range(20):
        source.guesses(text).learn(0)
    assert source.guesses(text).hope() > before
