"""From logits to tokens: each stage by its definition, and that equal seeds give equal answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_vocabularies import PROPERTY

from backbay import OptionError
from backbay_engine.errors import LogitsError
from backbay_engine.text.sampling import Sampler, SamplingParams

PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}


def row_of(*logits: float) -> np.ndarray:
    return np.array(logits, np.float32)


def random_row(seed: int, size: int = 50) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def possible(row: np.ndarray, draws: int = 300, **params: object) -> set[int]:
    sampler = Sampler(SamplingParams(**{**PLAIN, "seed": 1, **params}), row.size)
    return {sampler.sample(row).token for _ in range(draws)}


def expected_candidates(row: np.ndarray, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The stages in order, on a sorted list."""
    ids = np.argsort(-row, kind="stable").tolist()
    ids = ids[:top_k] if top_k else ids
    weights = np.exp(row[ids].astype(np.float64) - float(row.max()))
    if top_p < 1:
        reached = np.cumsum(weights / weights.sum())
        ids = ids[: int(np.count_nonzero(reached < top_p)) + 1]
    return [id for id in ids if row[id] >= row.max() + math.log(min_p)] if min_p else ids


@PROPERTY
@given(
    st.integers(0, 999),
    st.sampled_from([3, 40, 700, 5000]),
    st.sampled_from([0, 1, 2, 40, 10**6]),
    st.sampled_from([1.0, 0.99, 0.9, 0.3, 1e-6]),
    st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    st.booleans(),
)
def test_tokens_are_drawn_from_what_the_stages_leave(seed, size, top_k, top_p, min_p, ties) -> None:
    row = random_row(seed, size)
    row = np.round(row) if ties else row
    left = expected_candidates(row, top_k, top_p, min_p)
    drawn = possible(row, 20, top_k=top_k, top_p=top_p, min_p=min_p, temperature=5.0, seed=seed)
    assert drawn <= set(left)


def test_every_token_that_is_left_is_drawn_as_often_as_its_probability() -> None:
    row = row_of(*np.log([0.5, 0.3, 0.2]))
    sampler = Sampler(SamplingParams(**PLAIN, seed=7), 3)
    counts = np.bincount([sampler.sample(row).token for _ in range(20_000)], minlength=3)
    assert np.abs(counts / 20_000 - [0.5, 0.3, 0.2]).max() < 0.015


def test_temperature_comes_after_the_cuts() -> None:
    row = row_of(*np.log([0.6, 0.3, 0.1]))
    assert possible(row, top_p=0.8, temperature=50.0) == {0, 1}
    assert possible(row, min_p=0.4, temperature=50.0) == {0, 1}
    assert possible(row, top_k=1, temperature=50.0) == {0}


def test_temperature_zero_takes_the_largest_logit_and_the_lower_id_of_two() -> None:
    sampler = Sampler(SamplingParams(temperature=0), 4)
    assert sampler.sample(row_of(1, 5, 5, 2)).token == 1


@PROPERTY
@given(st.integers(0, 2**63 - 1), st.integers(0, 99))
def test_one_seed_gives_one_answer(seed: int, rows: int) -> None:
    params = SamplingParams(seed=seed, repetition_penalty=1.3, top_k=0, min_p=0)
    first, second = Sampler(params, 50), Sampler(params, 50)
    logits = [random_row(rows + step) for step in range(5)]
    # The second shares its steps with another request.
    other = Sampler(SamplingParams(seed=1), 50)
    answer = [first.sample(row).token for row in logits]
    assert answer == [(second.sample(row).token, other.sample(row))[0] for row in logits]


def test_an_answer_does_not_change_with_releases_or_machines() -> None:
    sampler = Sampler(SamplingParams(**PLAIN, seed=42), 50)
    rows = [np.sin(np.arange(50) * (step + 1)).astype(np.float32) for step in range(8)]
    assert [sampler.sample(row).token for row in rows] == [38, 22, 42, 35, 4, 46, 37, 39]


def test_without_a_seed_one_is_drawn_and_told() -> None:
    sampler = Sampler(SamplingParams(**PLAIN), 50)
    again = Sampler(SamplingParams(**PLAIN, seed=sampler.seed), 50)
    assert [sampler.sample(random_row(n)).token for n in range(20)] == [
        again.sample(random_row(n)).token for n in range(20)
    ]
    assert sampler.seed != Sampler(SamplingParams(), 50).seed


def penalized(row: np.ndarray, seen: list[int], **params: object) -> int:
    sampler = Sampler(SamplingParams(temperature=0, **params), row.size)
    sampler.accept(seen)
    return sampler.sample(row).token


def test_penalties_divide_and_subtract_as_they_say() -> None:
    row = row_of(2.0, 1.5, -1.0)
    assert penalized(row, [0]) == 0
    assert penalized(row, [0], repetition_penalty=1.5) == 1
    assert penalized(row, [0], presence_penalty=0.6) == 1
    assert penalized(row, [0], frequency_penalty=0.3) == 0
    assert penalized(row, [0, 0], frequency_penalty=0.3) == 1
    assert penalized(row_of(-1.0, -1.5), [0], repetition_penalty=2.0) == 1  # negative ones are multiplied
    assert penalized(row_of(1.0, 0.9), [0], presence_penalty=-1.0) == 0


@pytest.mark.parametrize("size", [1e308, -1e308])
@pytest.mark.parametrize("repetition", [1e308, 1e-308, 1.0])
@pytest.mark.fault("penalties of 1e308", "an answer, without a warning")
def test_huge_penalties_give_a_token(size: float, repetition: float) -> None:
    penalties = {"repetition_penalty": repetition, "presence_penalty": size, "frequency_penalty": size}
    row = row_of(2.0, -np.inf, -1.0, 0.5)
    chosen = penalized(row, [0, 1, 1, 2, 2, 2], **penalties)
    assert chosen == 3 if size > 0 else chosen in (0, 2)


def test_only_the_window_is_penalized() -> None:
    row = row_of(2.0, 1.5, 1.0)
    assert penalized(row, [0, 2, 2], presence_penalty=1.0, penalty_window=2) == 0
    assert penalized(row, [0, 2, 2], presence_penalty=1.0, penalty_window=3) == 1
    assert penalized(row, [0, *[2] * 500], presence_penalty=1.0, penalty_window=-1) == 1
    assert penalized(row, [0], presence_penalty=1.0, penalty_window=0) == 0


def test_what_was_chosen_is_penalized_too() -> None:
    sampler = Sampler(SamplingParams(temperature=0, presence_penalty=10.0), 3)
    assert [sampler.sample(row_of(3, 2, 1)).token for _ in range(4)] == [0, 1, 2, 0]


def test_bias_moves_and_forbids_tokens() -> None:
    row = row_of(3, 2, 1)
    assert Sampler(SamplingParams(temperature=0, logit_bias={2: 5.0}), 3).sample(row).token == 2
    assert possible(row, logit_bias={0: -math.inf, 1: -math.inf}) == {2}
    assert row.tolist() == [3, 2, 1]  # never written to


def test_log_probabilities_are_the_models_own() -> None:
    row = random_row(3)
    expected = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    params = SamplingParams(logprobs=4, seed=3, temperature=2.0, logit_bias={7: 2.0}, repetition_penalty=2.0)
    found = Sampler(params, 50).sample(row)
    assert found.logprob == pytest.approx(expected[found.token], abs=1e-5)
    assert [each.token for each in found.top] == np.argsort(-row, kind="stable")[:4].tolist()
    assert [each.logprob for each in found.top] == pytest.approx(sorted(expected, reverse=True)[:4], abs=1e-5)
    assert Sampler(SamplingParams(logprobs=0, temperature=0), 50).sample(row).top == ()
    assert Sampler(SamplingParams(), 50).sample(row).logprob is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {}, {"logit_bias": {1: 1.0}}, {"presence_penalty": 1.0}]
)
def test_a_row_that_is_not_finite_is_an_error_that_says_where(bad: float, params: dict) -> None:
    row = random_row(1)
    row[17] = bad
    with pytest.raises(LogitsError, match=r"1 of 50 .* token 17"):
        Sampler(SamplingParams(**params), 50).sample(row)


def test_a_row_that_allows_no_token_is_an_error() -> None:
    with pytest.raises(LogitsError, match="no token can be chosen"):
        Sampler(SamplingParams(logit_bias={0: -math.inf}), 2).sample(row_of(1, -math.inf))


def test_impossible_tokens_are_never_drawn() -> None:
    row = np.full(5000, -np.inf, np.float32)
    row[[7, 4000]] = 1.0
    for params in ({}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.1}):
        assert possible(row, 50, **params) <= {7, 4000}


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(LogitsError, match=r"\(3,\), got \(4,\)"):
        Sampler(SamplingParams(), 3).sample(row_of(1, 2, 3, 4))


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"repetition_penalty": 0},
        {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf},
        {"penalty_window": -2},
        {"seed": -1},
        {"logprobs": -1},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {1: math.inf}},
        {"temperature": "1"},
        {"top_k": 1.5},
        {"top_p": None},
        {"penalty_window": None},
        {"seed": "eleven"},
        {"logprobs": "2"},
        {"logit_bias": 5},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": {1: "a"}},
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(params: dict) -> None:
    with pytest.raises(OptionError, match=next(iter(params))):
        SamplingParams(**params)


def test_a_bias_for_a_token_that_is_none_is_refused() -> None:
    with pytest.raises(OptionError, match="logit_bias names token 50"):
        Sampler(SamplingParams(logit_bias={50: 1.0}), 50)


@PROPERTY
@given(st.integers(0, 2**63 - 1), st.integers(0, 8))
def test_a_choice_depends_on_its_position_alone(seed: int, cut: int) -> None:
    params = SamplingParams(seed=seed, temperature=1.5, frequency_penalty=0.5, penalty_window=3)
    first, second = Sampler(params, 50), Sampler(params, 50)
    answer = [first.sample(random_row(step)).token for step in range(8)]
    second.resume(answer[:cut])
    assert [second.sample(random_row(step)).token for step in range(cut, 8)] == answer[cut:]
