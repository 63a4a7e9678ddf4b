"""An answer as it grows: its tokens, the text that is certain, and why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ...errors import RequestError
from ...text.sampling import Sampled, StopMatcher
from ...text.tokenizers import Tokenizer
from .answer import Completion, FinishReason, Timings, TokenStep
from .handle import Receiver
from .options import GenerationOptions


@final
class AnswerText:
    """Takes the tokens of an answer, those of `resume` first; RequestError if they do not go on."""

    def __init__(self, options: GenerationOptions, tokenizer: Tokenizer | None) -> None:
        # a file without a vocabulary gives tokens, but no text and no end-of-text token
        self._text = None if tokenizer is None else tokenizer.stream(continues=True, shown=options.shown)
        self._end_ids = frozenset[int]() if tokenizer is None else tokenizer.end_ids
        self._stops, self._limit = StopMatcher(options.stop), options.max_tokens
        self._pieces: list[str] = []
        self.tokens: list[int] = []
        self.reason: FinishReason | None = None
        self._resume(options.resume)

    def _resume(self, tokens: Sequence[int]) -> None:
        """Take the tokens of the interrupted answer; their text was given by the steps that gave them."""
        for count, token in enumerate(tokens):
            if self.reason is not None:
                raise RequestError(
                    f"resume has {len(tokens)} tokens, but the answer is over after {count} of them"
                )
            self.add(token)
        if self.reason is not None:
            self._rest()

    def add(self, token: int) -> str:
        """The text that is certain after the answer's next token, which may be its last one."""
        self.tokens.append(token)
        if token in self._end_ids:
            self.reason = "stop"
            return ""
        piece = "" if self._text is None else self._stops.push(self._text.push(token))
        if piece:
            self._pieces.append(piece)
        if self._stops.stop is not None:
            self.reason = "stop"
        elif len(self.tokens) == self._limit:
            self.reason = "length"
        return piece

    def give(
        self,
        receiver: Receiver[Completion],
        timings: Timings,
        last: TokenStep | None = None,
        logprobs: list[Sampled] | None = None,
    ) -> None:
        """Give the last step, with the text that was held back, and the whole answer."""
        reason = self.reason or "cancelled"
        step = last or TokenStep("", (), None if logprobs is None else ())
        receiver.emit(step._replace(text=step.text + self._rest(), finish_reason=reason))
        timings.tokens = len(self.tokens)
        text, stop = "".join(self._pieces), self._stops.stop
        receiver.succeed(Completion(text, self.tokens, reason, logprobs, stop, timings))

    def _rest(self) -> str:
        """The text that was held back, once nothing more comes."""
        if self._text is None:
            return ""
        rest = self._stops.push(self._text.finish()) + self._stops.finish()
        self._pieces.append(rest)
        return rest
