"""The parts of an answer as Ollama gives them: calls of tools come whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from backbay_engine import CallArguments, CallBegun, Reasoning, Text, Tokenizer, ToolCall

from ...generation import Delta
from ..logprobs import ChosenLogprob, chosen_of
from .answers import Call, Function


@final
@dataclass
class Grown:
    """What is new since the last line."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[ChosenLogprob] | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls or self.logprobs)


@final
class Parts:
    """Collects the pieces of an answer until they are taken."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._new = tokenizer, Grown()
        self._open: tuple[CallBegun, list[str]] | None = None

    def add(self, delta: Delta) -> None:
        for piece in delta.pieces:
            match piece:
                case Text(text):
                    self._new.text += text
                case Reasoning(text):
                    self._new.reasoning += text
                case CallBegun():
                    self._end_call()
                    self._open = piece, []
                case CallArguments(_, text):
                    assert self._open is not None
                    self._open[1].append(text)
        if delta.logprobs is not None:
            shown = chosen_of(self._tokenizer, delta.logprobs)
            self._new.logprobs = [*(self._new.logprobs or ()), *shown]

    def taken(self, *, last: bool = False) -> Grown:
        """What is new; a call that still grows is left for later, unless this is the last time."""
        if last:
            self._end_call()
        taken, self._new = self._new, Grown()
        return taken

    def _end_call(self) -> None:
        if self._open is not None:
            begun, arguments = self._open
            self._new.calls.append(
                Call(
                    begun.id, Function(begun.name, ToolCall(begun.id, begun.name, "".join(arguments)).values)
                )
            )
        self._open = None
