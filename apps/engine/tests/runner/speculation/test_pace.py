"""The pace of a model, and how many tokens are guessed for it."""

from __future__ import annotations

import pytest

from backbay_engine.runner.speculation.speculation import KEPT, STALE, StepTimes


def paced(seconds: dict[int, float]) -> StepTimes:
    pace = StepTimes()
    for tokens, each in seconds.items():
        for _ in range(2):
            pace.note(tokens, each)
    return pace


def test_one_measurement_is_not_enough() -> None:
    pace = StepTimes()
    pace.note(1, 9.0)  # traced, perhaps
    assert pace.known(1) is None
    pace.note(1, 1.0)
    assert pace.known(1) == 1.0


def test_others_that_share_the_processor_do_not_count() -> None:
    pace = paced({1: 1.0})
    pace.note(1, 50.0)
    assert pace.known(1) == 1.0


def test_a_slower_machine_is_noticed() -> None:
    pace = paced({1: 1.0})
    for _ in range(KEPT):
        pace.note(1, 3.0)
    assert pace.known(1) == 3.0


def test_an_old_measurement_fades_so_that_it_is_made_again() -> None:
    pace = paced({1: 1.0, 4: 9.0})
    for _ in range(2 * STALE + 2):
        pace.note(1, 1.0)
    faded = pace.known(4)
    assert faded is not None
    assert 1.0 < faded < 9.0


def test_a_first_try_is_a_small_one() -> None:
    pace = paced({1: 1.0})
    assert pace.seconds(4, 1) == pytest.approx(1.15)
    assert pace.seconds(8, 1) is None


def test_other_sizes_are_expected_to_cost_like_the_nearest() -> None:
    pace = paced({1: 1.0, 4: 4.0})
    assert pace.seconds(8, 1) == pytest.approx(0.9 * 8.0)
    assert pace.seconds(4, 1) == 4.0


def test_more_tokens_never_count_as_faster() -> None:
    pace = paced({4: 1.0, 1: 3.0})  # the machine is slower by now
    assert pace.seconds(4, 1) == 3.0


def test_a_slow_moment_does_not_make_many_tokens_cheap() -> None:
    pace = paced({2: 1.0, 1: 1.4})  # steps of one token were measured while others used the machine
    assert (pace.seconds(16, 1) or 0) > 2 * 1.0
