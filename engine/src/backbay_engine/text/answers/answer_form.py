"""How models write their answers: reasoning, text and calls, as their chat templates show it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from .call_style import BARE, CallStyle, style_of


@final
@dataclass(frozen=True)
class AnswerForm:
    """How a model writes the parts of its answers.

    thinking  the marks around reasoning, which stands at the beginning
    calls     how calls stand in the text; None: they are not looked for
    channels  whether each part is a message in a channel, as gpt-oss writes them
    """

    thinking: tuple[str, str] | None = None
    calls: CallStyle | None = None
    channels: bool = False

    @property
    def marks(self) -> Iterator[str]:
        """All marks; a vocabulary may have a control token for each."""
        for mark in self.thinking or ():
            yield from _TOKENS.findall(mark)
        if self.calls is not None:
            yield from filter(None, (*self.calls.around, self.calls.begin, *self.calls.inner, self.calls.end))


_TOKENS: Final = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")  # in a mark; text may follow
PLAIN: Final = AnswerForm()
_THINKING: Final = (
    ("[THINK]", "[/THINK]"),
    ("<think>", "</think>"),
    ("<|channel>thought\n", "<channel|>"),
)


def form_of(template: str, *, tools: bool) -> AnswerForm:
    """The form of answers to the prompts of a chat template, which shows the model how to answer."""
    if "<|channel|>" in template and "<|message|>" in template:
        return AnswerForm(calls=BARE if tools else None, channels=True)
    thinking = next((marks for marks in _THINKING if marks[1] in template), None)
    return AnswerForm(thinking, style_of(template) if tools else None)
