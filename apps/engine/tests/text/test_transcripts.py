from __future__ import annotations

import numpy as np
import pytest

from backbay_engine.text.transcripts import (
    Segment,
    Transcript,
    TranscriptMarks,
    TranscriptRules,
    window_segments,
)
from backbay_engine.text.transcripts.transcript import clock

MARKS = TranscriptMarks(
    start=11,
    end=10,
    no_timestamps=14,
    previous=None,
    languages={},
    tasks={},
    suppressed=(3,),
    suppressed_first=(4, 10),
    latest_begin=2,
    window=10,
)
T = MARKS.first_time
SIZE = T + 6


def allowed(answer: list[int], row: np.ndarray | None = None, *, times: bool = True) -> set[int]:
    row = np.zeros(SIZE, np.float32) if row is None else row
    found = TranscriptRules(MARKS, times).allowed(row, answer)
    return {id for id in range(SIZE) if found[id] > -np.inf}


def likely(*ids: int) -> np.ndarray:
    row = np.zeros(SIZE, np.float32)
    row[list(ids)] = 9
    return row


def test_a_time_comes_first_and_not_too_late() -> None:
    assert allowed([]) == {T, T + 1, T + 2}
    assert allowed([], times=False) == set(range(SIZE)) - {3, 4, 10}


def test_times_come_in_pairs_and_never_fall() -> None:
    text = set(range(T)) - {3, MARKS.no_timestamps}
    assert allowed([T + 1], likely(5)) == text
    assert allowed([T + 1, 5], likely(5)) == text | set(range(T + 2, SIZE))
    assert allowed([T + 1, 5, T + 3], likely(10)) == {10, 11, 12, 13, *range(T + 3, SIZE)}
    assert allowed([T + 1, 5, T + 3, T + 3], likely(5)) == text


def test_a_time_comes_where_all_times_together_are_likelier_than_any_word() -> None:
    assert allowed([T, 5], np.zeros(SIZE, np.float32)) == set(range(T + 1, SIZE))
    assert 5 in allowed([T, 5], likely(5))


def test_the_logits_are_not_changed_in_place() -> None:
    row = np.zeros(SIZE, np.float32)
    allowed([], row)
    assert not row.any()


@pytest.mark.parametrize(
    ("tokens", "times", "further"),
    [
        ([T, 5, T + 2, T + 2, 6, T + 4], [(0, 2), (2, 4)], 10),  # nobody speaks after the last
        ([T, 5, T + 2, T + 3, 6], [(0, 2)], 4),  # the rest is cut
        ([T, 5, T + 2, T + 2], [(0, 2)], 4),
        ([T + 1, 5, 6], [(0, 1)], 10),
        ([T, 5, 6], [(0, 5)], 10),
        ([5, 6], [(0, 5)], 10),
        ([], [(0, 5)], 10),
        ([T, T, 5], [(0, 0)], 10),  # no window begins where the last one did
    ],
)
def test_windows_go_on_behind_the_last_pair(
    tokens: list[int], times: list[tuple[int, int]], further: int
) -> None:
    found, begin = window_segments(tokens, MARKS, 10)
    assert ([(each.begin, each.end) for each in found], begin) == (times, further)


def test_subtitles_are_files_that_players_read() -> None:
    found = Transcript((Segment(0, 1.5, " Hello --> there\n you"), Segment(3661.25, 3662, " Bye")), "en")
    assert found.srt == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello -> there you\n\n2\n01:01:01,250 --> 01:01:02,000\nBye\n\n"
    )
    assert found.vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello -> there you\n\n01:01:01.250")
    assert found.entry["segments"][1]["id"] == 1
    assert clock(59.9996) == "00:01:00.000"
