"""Suggestions for a name that was not found."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice


def nearest(word: str, words: Iterable[str]) -> str:
    """`; nearest: ...` for a message, or an empty string. Names come from files, so the search is bounded."""
    from difflib import get_close_matches  # takes longer to import than most of core

    candidates = islice((name for name in words if len(name) < 100), 5000)
    matches = get_close_matches(word, candidates, n=3, cutoff=0.6)
    return f"; nearest: {', '.join(map(repr, matches))}" if matches else ""
