"""Stop strings: the same result however the text is cut, namely that of the whole text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_vocabularies import PROPERTY

from backbay import OptionError
from backbay_engine.text.sampling import StopMatcher

LETTERS = st.text(alphabet="ab\n", max_size=30)


def search(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first; of several, the longest."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@PROPERTY
@given(
    LETTERS,
    st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30)),
)
def test_the_text_ends_before_the_first_stop_however_it_is_cut(text, stops, cuts) -> None:
    matcher, shown = StopMatcher(stops), ""
    expected, stop = search(text, stops)
    for start, end in pairwise(sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})):
        shown += matcher.push(text[start:end])
        assert expected.startswith(shown)
    assert shown + matcher.finish() == expected
    assert matcher.stop == stop


def test_only_what_may_become_a_stop_is_held_back() -> None:
    matcher = StopMatcher(["</end>", "\n\nUser:"])
    assert matcher.push("Hello") == "Hello"
    assert matcher.push(" <") == " "
    assert matcher.push("/en") == ""
    assert matcher.push("!") == "</en!"
    assert matcher.push("\n\nUse") == ""
    assert matcher.push("r: go on") == ""
    assert matcher.stop == "\n\nUser:"
    assert (matcher.push("more"), matcher.finish()) == ("", "")


def test_without_stops_everything_passes() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == "anything"
    assert matcher.finish() == ""


def test_stops_that_make_no_sense_are_refused() -> None:
    with pytest.raises(OptionError, match="must not be empty"):
        StopMatcher(["a", ""])
    with pytest.raises(OptionError, match=r"write \['end'\]"):
        StopMatcher("end")
