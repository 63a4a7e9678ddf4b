"""The reader of an answer: of plain text, or of the form in which the model writes reasoning and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from .answer_form import AnswerForm
from .arguments import Schema
from .channels import ChannelReader
from .marks import MarkReader
from .pieces import AnswerReader, CallArguments, CallBegun, Piece, Text


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
class FirstCall(AnswerReader):
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
    reader: AnswerReader = (
        ChannelReader(tools=form.calls is not None)
        if form.channels
        else MarkReader(form, inside=inside, schemas=schemas)
    )
    return reader if parallel else FirstCall(reader)
