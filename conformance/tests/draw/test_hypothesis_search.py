"""Hypothesis draws calls by turn, keeps what fails for the next run, and makes it small."""

from __future__ import annotations

import pytest

from backbay.plugin import CachedValue
from backbay_conformance import run
from backbay_conformance.draw import hypothesis_search as searching
from backbay_conformance.draw.choices import Source
from backbay_conformance.draw.hypothesis_search import find_failure, find_worst


def pairs_from(seen: list[tuple[int, int, bool]], fails: tuple[int, int] = (900, 900)) -> searching.Example:
    """An example of two numbers, the second of them by turn; it fails if both are large enough."""

    def example(source: Source, new: bool) -> bool:
        seen.append((source(1000, None), source(1000, len(seen)), new))
        return seen[-1][0] >= fails[0] and seen[-1][1] >= fails[1]

    return example


def test_a_new_example_takes_some_choices_by_its_turn_and_the_others_by_its_seed() -> None:
    runs: list[list[tuple[int, int, bool]]] = [[], [], []]
    for seen, seed in zip(runs, "aab", strict=True):
        find_failure(pairs_from(seen), 20, seed)
    assert [turn for _, turn, _ in runs[0]] == list(range(20))
    assert all(new for *_, new in runs[0])
    assert runs[0] == runs[1] != runs[2]
    assert len({number for number, *_ in runs[0]}) > 10


def test_what_fails_becomes_as_small_as_it_can() -> None:
    seen: list[tuple[int, int, bool]] = []
    find_failure(pairs_from(seen, (7, 3)), 50, "small")
    assert min(pair[:2] for pair in seen if pair[0] >= 7 and pair[1] >= 3) == (7, 3)
    assert sum(new for *_, new in seen) < 50, "no example is drawn after the first that fails"


def test_a_search_for_a_smaller_example_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, bool]] = []
    monkeypatch.setattr(searching.time, "monotonic", lambda: 10.0 * len(seen))
    find_failure(pairs_from(seen, (7, 3)), 50, "time", seconds=25)
    assert sum(not new for *_, new in seen) == 3


def test_an_example_that_fails_once_ends_the_search() -> None:
    seen: list[bool] = []

    def once(source: Source, new: bool) -> bool:
        seen.append(source(2, None) == 0)
        return len(seen) == 3

    find_failure(once, 50, "once")
    assert len(seen) == 4


def test_what_failed_is_tried_first_until_it_passes() -> None:
    kept = CachedValue("failures", "numbers", [])
    find_failure(pairs_from([], (7, 3)), 50, "first", kept=kept)
    seen: list[tuple[int, int, bool]] = []
    find_failure(pairs_from(seen, (7, 3)), 50, "second", kept=kept)
    assert seen[0] == (7, 3, False)
    find_failure(pairs_from(seen), 5, "mended", kept=kept)
    assert kept.recall() is None


def test_a_climb_finds_a_peak_that_draws_miss() -> None:
    peaks: list[list[int]] = [[], []]
    for seen in peaks:

        def example(source: Source, seen: list[int] = seen) -> dict[str, float]:
            seen.append(source(1 << 20, None))
            return {"near": -float(abs(seen[-1] - 654_321))}

        find_worst(example, 300, "climb", seconds=1e9)
    assert peaks[0] == peaks[1]
    assert 654_321 in peaks[0]
    assert 654_321 not in peaks[0][:150], "the draws before the climb"


def test_a_climb_ends_with_its_time_or_the_first_example_without_a_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def example(source: Source) -> dict[str, float] | None:
        seen.append(source(1 << 20, None))
        return {"size": float(seen[-1])} if len(seen) < 50 else None

    monkeypatch.setattr(searching.time, "monotonic", lambda: 10.0 * len(seen))
    find_worst(example, 300, "time", seconds=25)
    assert len(seen) == 3
    find_worst(example, 300, "none", seconds=1e9)
    assert len(seen) == 50


def test_a_failed_call_of_a_run_is_the_first_of_the_next() -> None:
    chosen = {"ops": ["tanh"], "profiles": ["core"], "size": "smoke", "in_process": False}
    (first, *_) = run("broken_backends:Imprecise", **chosen).failures  # type: ignore[arg-type]
    report = run("broken_backends:Imprecise", seed=1, **chosen)  # type: ignore[arg-type]
    assert report.failures[0].item == "core/tanh/again"
    assert report.failures[0].call == first.call
    assert report.counts["passed"] + report.counts["failed"] == 10
