"""Answers: what a request for text gives, step by step and as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from ...text.answers import ToolCall
from ...text.sampling import Sampled

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "tool_calls"]


@dataclass
class Timings:
    """Where the time of a request went, in seconds."""

    prompt_tokens: int = 0
    reused_tokens: int = 0  # of the prompt, already in the cache
    tokens: int = 0
    resumed_tokens: int = 0  # of the answer, given by `resume`
    guessed_tokens: int = 0  # that steps verified, if the model speculates
    accepted_tokens: int = 0  # of these, those that were right
    pictures: float = 0.0  # for the preparation and the encoding of the prompt's pictures
    waited: float = 0.0  # for a free sequence
    prompt: float = 0.0  # from the free sequence to the first token
    generation: float = 0.0  # from the first token to the last

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens per second, reused ones not counted."""
        return (self.prompt_tokens - self.reused_tokens) / self.prompt if self.prompt else 0.0

    @property
    def rate(self) -> float:
        """Tokens per second after the first that was made here."""
        made = self.tokens - self.resumed_tokens
        return (made - 1) / self.generation if self.generation and made > 1 else 0.0


@dataclass
class Completion:
    """The result of a request for text: a whole answer, also if it was resumed.

    reasoning   what the model wrote before its answer, told apart by `chat`
    tool_calls  the calls of tools, told apart by `chat`
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    logprobs: list[Sampled] | None = None  # one for each token made here; None if not asked for
    stop: str | None = None  # the stop string that ended it
    timings: Timings = field(default_factory=Timings)
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to go on with the conversation."""
        made: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            made["reasoning_content"] = self.reasoning
        if self.tool_calls:
            made["tool_calls"] = [call.entry for call in self.tool_calls]
        return made


class TokenStep(NamedTuple):
    """What one step of a request gave: the steps of an answer, joined, are its text and its tokens.

    text           the text that is certain now; empty while a character or a stop string may be incomplete
    tokens         the new tokens; none if the answer ends without one
    logprobs       those of the new tokens; None if not asked for
    finish_reason  why the answer ended, in its last step; None in the others
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[Sampled, ...] | None = None
    finish_reason: FinishReason | None = None
