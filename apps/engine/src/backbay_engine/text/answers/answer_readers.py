"""The readers of answers: of plain text, of channels, and of the first call alone; other forms stand between marks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias, final

from ..sampling.stops import possible_mark
from .answer_form import AnswerForm
from .arguments import Schema
from .marked_answer_reader import MarkedAnswerReader
from .pieces import AnswerReader, CallArguments, CallBegun, HoldingReader, Piece, Reasoning, Text, first_mark


@final
class PlainReader(AnswerReader):
    """All is text."""

    @property
    def calls(self) -> int:
        return 0

    @property
    def is_calling(self) -> bool:
        return False

    def push(self, text: str) -> Sequence[Piece]:
        return (Text(text),) if text else ()

    def finish(self) -> Sequence[Piece]:
        return ()


@final
class FirstCallReader(AnswerReader):
    """Leaves out the calls after the first one of another reader."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader

    @property
    def calls(self) -> int:
        return min(1, self._reader.calls)

    @property
    def is_calling(self) -> bool:
        return self._reader.calls == 1 and self._reader.is_calling

    def push(self, text: str) -> Sequence[Piece]:
        return [piece for piece in self._reader.push(text) if not _further(piece)]

    def finish(self) -> Sequence[Piece]:
        calling, rest = self._reader.is_calling, self._reader.finish()
        if calling and self._reader.calls:
            rest = [piece for piece in rest if not isinstance(piece, Text)]  # of a further call that was cut
        return [piece for piece in rest if not _further(piece)]


def _further(piece: Piece) -> bool:
    return isinstance(piece, CallBegun | CallArguments) and piece.number > 0


def reader_of(
    form: AnswerForm,
    *,
    inside: bool = False,
    parallel: bool = True,
    schemas: Mapping[str, Schema] | None = None,
) -> AnswerReader:
    """The reader of an answer's form.

    inside    the prompt has begun the reasoning
    parallel  whether an answer may have several calls; otherwise it has the first one only
    schemas   of the tools' arguments, by the tools' names: some forms do not tell texts from numbers
    """
    reader: AnswerReader = MarkedAnswerReader(form, inside=inside, schemas=schemas)
    if form.channels:
        reader = ChannelAnswerReader(tools=form.calls is not None)
    return reader if parallel else FirstCallReader(reader)


_MESSAGE: Final = "<|message|>"
_HEADS: Final = ("<|start|>", "<|channel|>", "<|constrain|>", _MESSAGE, "to=")  # what a header may begin with
_MARKS: Final = _HEADS[:-1]
_OVER: Final = ("<|end|>", "<|call|>", "<|return|>")
_ENDS: Final = (*_OVER, "<|start|>", "<|channel|>")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_NO_TOOLS: Final = ("assistant", "user", "all")  # recipients
_LONGEST: Final = 512  # letters of a header
Part: TypeAlias = Literal["text", "reasoning", "arguments"]


@final
class ChannelAnswerReader(HoldingReader):
    """Messages with headers: those in the channel "analysis" are reasoning, those to a tool are calls, others are text."""

    def __init__(self, *, tools: bool) -> None:
        super().__init__()
        self._tools = tools  # whether calls are looked for; otherwise they are text
        self._part: Part | None = None  # of the message; None: its header is not whole
        self._empty = True  # the message has no text so far

    @property
    def is_calling(self) -> bool:
        return self._part == "arguments"

    def finish(self) -> Sequence[Piece]:
        held, self._held = self._held, ""
        if self._part is None and (not held.strip() or held.lstrip().startswith(_MARKS)):
            return ()
        self._part = self._part or "text"
        self._give(held)
        self._end()
        return self._taken()

    def _go_on(self) -> bool:
        return self._header() if self._part is None else self._body()

    def _header(self) -> bool:
        begun = self._held.lstrip()
        if not any(begun.startswith(each) or each.startswith(begun) for each in _HEADS):
            self._part = "text"
            return True
        head, whole, rest = self._held.partition(_MESSAGE)
        if whole and len(head) <= _LONGEST:
            self._begin(head)
            self._held = rest
            return True
        if len(self._held) <= _LONGEST:
            return False
        self._part = "text"
        return True

    def _begin(self, head: str) -> None:
        recipient, channel = _RECIPIENT.search(head), _CHANNEL.findall(head)
        if self._tools and recipient is not None and recipient[1] not in _NO_TOOLS:
            self._part = "arguments"
            self._begin_call(recipient[1].removeprefix("functions."))
        else:
            self._part = "reasoning" if channel[-1:] == ["analysis"] else "text"

    def _body(self) -> bool:
        at, mark = first_mark(self._held, _ENDS)
        if mark:
            self._give(self._held[:at])
            self._end()
            self._held = self._held[at + (len(mark) if mark in _OVER else 0) :]
            return True
        certain = len(self._held) - possible_mark(self._held, _ENDS)
        self._give(self._held[:certain])
        self._held = self._held[certain:]
        return False

    def _end(self) -> None:
        if self._part == "arguments" and self._empty:
            self._give("{}")
        self._part, self._empty = None, True

    def _give(self, text: str) -> None:
        if not text:
            return
        self._empty = False
        match self._part:
            case "reasoning":
                self._given.append(Reasoning(text))
            case "arguments":
                self._given.append(CallArguments(self._begun - 1, text))
            case _:
                self._given.append(Text(text))
