"""The output of a response: its items while they grow, and the events that tell of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from backbay_engine import CallBegun, Piece, Reasoning, Text

from ...logprobs import ChosenLogprob
from . import answers, events
from .answers import FunctionCall, Item, Message, OutputText, ReasoningText, Status
from .events import StreamEvent


@final
class Output:
    """Items, of which at most the last one still grows."""

    def __init__(self, name: str) -> None:
        self.items: list[Item] = []
        self._name = name
        self._growing: Item | None = None
        self._texts, self._logprobs = list[str](), list[ChosenLogprob]()  # of the growing item

    def grow(self, piece: Piece, logprobs: Sequence[ChosenLogprob] = ()) -> Iterator[StreamEvent]:
        """Take a piece of the answer; gives the events that tell of it."""
        match piece:
            case CallBegun(_, id, name):
                yield from self._begin(FunctionCall(self._id("fc"), "in_progress", id, name))
            case Text(text):
                if not isinstance(self._growing, Message):
                    yield from self._begin(Message(self._id("msg"), "in_progress"), OutputText(""))
                self._logprobs += logprobs
                yield events.TextDelta(**self._place(), delta=text, logprobs=list(logprobs))
            case Reasoning(text):
                if not isinstance(self._growing, answers.Reasoning):
                    yield from self._begin(
                        answers.Reasoning(self._id("rs"), "in_progress"), ReasoningText("")
                    )
                yield events.ReasoningDelta(**self._place(), delta=text)
            case _:
                yield events.ArgumentsDelta(**self._place(), delta=piece.text)
        if not isinstance(piece, CallBegun):
            self._texts.append(piece.text)

    def finish(self, status: Status) -> Iterator[StreamEvent]:
        """Close the item that grows, and give the events that tell of it."""
        item, text = self._growing, "".join(self._texts)
        if item is None:
            return
        place = self._place()
        item.status = status
        match item:
            case FunctionCall():
                item.arguments = text
                yield events.ArgumentsDone(**place, name=item.name, arguments=text)
            case Message():
                item.content = [OutputText(text, logprobs=self._logprobs)]
                yield events.TextDone(**place, text=text, logprobs=self._logprobs)
                yield events.PartDone(**place, part=item.content[0])
            case answers.Reasoning():
                item.content = [ReasoningText(text)]
                yield events.ReasoningDone(**place, text=text)
                yield events.PartDone(**place, part=item.content[0])
        yield events.ItemDone(output_index=place["output_index"], item=item)
        self._growing, self._texts, self._logprobs = None, [], []

    def _begin(self, item: Item, part: OutputText | ReasoningText | None = None) -> Iterator[StreamEvent]:
        yield from self.finish("completed")
        self.items.append(item)
        self._growing = item
        yield events.ItemAdded(output_index=len(self.items) - 1, item=item)
        if part is not None:
            yield events.PartAdded(**self._place(), part=part)

    def _place(self) -> events.Place:
        return {"item_id": self.items[-1].id, "output_index": len(self.items) - 1}

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._name}_{len(self.items)}"
