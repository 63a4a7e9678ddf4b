"""Events: what an answer gives while it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from backbay_engine import Piece, Sampled, Timings

Reason: TypeAlias = Literal["stop", "length", "tool_calls"]


class Usage(NamedTuple):
    """The tokens of an answer, and of its prompt, of which `cached` were in the cache already."""

    prompt: int
    cached: int
    generated: int


class Delta(NamedTuple):
    """What one step added to an answer.

    pieces    the text, reasoning and calls of tools that are certain now
    tokens    the new tokens; their text may follow in a later step
    logprobs  those of the new tokens; None if not asked for
    """

    choice: int
    pieces: Sequence[Piece]
    tokens: Sequence[int]
    logprobs: Sequence[Sampled] | None


class Finish(NamedTuple):
    """The end of an answer; `stop` is the stop string that ended it."""

    choice: int
    reason: Reason
    stop: str | None
    usage: Usage
    timings: Timings


Event: TypeAlias = Delta | Finish
