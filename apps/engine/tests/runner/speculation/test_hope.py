"""How likely a small model's guesses are, by what was verified."""

from __future__ import annotations

from backbay_engine.runner.speculation.draft_model import PRIOR, AcceptanceMeter, DraftTracker
from backbay_engine.runner.speculation.speculation import STALE, StepTimes


def test_a_few_wrong_guesses_at_the_beginning_leave_little_hope() -> None:
    guesses = DraftTracker(AcceptanceMeter(), StepTimes())
    for _ in range(4):
        guesses.verified(1, 0)
    assert guesses.hope() < PRIOR / 2


def test_one_wrong_guess_after_many_right_ones_leaves_much_hope() -> None:
    guesses = DraftTracker(AcceptanceMeter(), StepTimes())
    for _ in range(20):
        guesses.verified(4, 4)
    guesses.verified(4, 0)
    assert guesses.hope() > 0.9


def test_an_answer_begins_with_what_earlier_answers_have_shown() -> None:
    of_all = AcceptanceMeter()
    for _ in range(30):
        DraftTracker(of_all, StepTimes()).verified(1, 0)
    assert DraftTracker(of_all, StepTimes()).hope() < 0.1


def test_hope_returns_while_nothing_is_verified() -> None:
    guesses = DraftTracker(AcceptanceMeter(0.0), StepTimes())
    for _ in range(2000):
        guesses.learn(7)
    assert 0.9 * PRIOR < guesses.hope() < PRIOR


def test_the_time_of_guesses_is_measured_again_after_many_tokens_without_any() -> None:
    pace = StepTimes()
    for _ in range(2):
        pace.note(1, 9.0)
    guesses = DraftTracker(AcceptanceMeter(), pace)
    for _ in range(4 * STALE):
        guesses.learn(7)
    faded = pace.known(1)
    assert faded is not None
    assert faded < 4.5
