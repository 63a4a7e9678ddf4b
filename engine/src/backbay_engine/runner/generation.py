"""A request for text, from its prompt to its last token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from numpy.typing import NDArray

from ..steps.texts import text_length
from ..steps.tokens import Token
from ..text.sampling import Sampled, Sampler, StopMatcher
from ..text.tokenizers import Tokenizer
from .answer import Clock, Completion, FinishReason, Timings
from .job import Job, RowsOfPictures
from .options import GenerationOptions
from .slots import Slot


@final
class Generation(Job):
    """Samples tokens until the answer ends."""

    def __init__(
        self,
        prompt: Sequence[Token],
        pictures: RowsOfPictures | None = None,
        *,
        options: GenerationOptions,
        tokenizer: Tokenizer | None,
        vocabulary_size: int,
    ) -> None:
        super().__init__(prompt, pictures, reuse=options.reuse)
        self.options = options
        self.sampler = Sampler(options.sampling, vocabulary_size)
        self.text_end = text_length(prompt)
        self.sampler.accept(self.ids(len(prompt))[self.text_end :])
        # a file without a vocabulary gives tokens, but no text and no end-of-text token
        self.text = tokenizer.stream(continues=True) if tokenizer is not None else None
        self.end_ids = tokenizer.end_ids if tokenizer is not None else frozenset[int]()
        self.stops = StopMatcher(options.stop)
        self.timings = Timings(prompt_tokens=len(prompt))
        self._clock = Clock()
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[Sampled] = []
        self._reason: FinishReason = "cancelled"

    def start(self, slot: Slot) -> None:
        super().start(slot)
        self.timings.waited = self._clock.lap()
        self.timings.reused_tokens = self.done

    def arrived(self, seconds: float) -> None:
        self.timings.pictures = seconds

    def wanted(self, count: int) -> Sequence[int]:
        return (count - 1,) if count == self.pending else ()

    def receive(self, rows: NDArray[Any]) -> bool:
        sampled = self.sampler.sample(rows[0])
        if not self._tokens:
            self.timings.prompt = self._clock.lap()
        self._tokens.append(sampled.token)
        if self.options.sampling.logprobs is not None:
            self._logprobs.append(sampled)
        if sampled.token in self.end_ids:
            return self._over("stop")
        if self.text is not None:
            self._show(self.text.push(sampled.token))
        if self.stops.stop is not None:
            return self._over("stop")
        if len(self._tokens) == self.options.max_tokens:
            return self._over("length")
        self.todo = [sampled.token]
        return True

    def make_room(self, context: int) -> int | None:
        keep = self.options.num_keep
        if keep is not None and self.text_end:  # the decoder attends to the whole text
            keep = max(keep, self.text_end + 1)
        if keep is None or keep > context - 2:
            self._over("length")
            return None
        return keep

    def finish(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.handle.fail(error)
            return
        if self.text is not None:
            self._show(self.text.finish(), last=True)
        self.timings.generation = self._clock.lap() if self._tokens else 0.0
        self.timings.tokens = len(self._tokens)
        logprobs = None if self.options.sampling.logprobs is None else self._logprobs
        text, stop = "".join(self._pieces), self.stops.stop
        self.handle.succeed(Completion(text, self._tokens, self._reason, logprobs, stop, self.timings))

    def _over(self, reason: FinishReason) -> bool:
        self._reason = reason
        return False

    def _show(self, text: str, *, last: bool = False) -> None:
        piece = self.stops.push(text) + (self.stops.finish() if last else "")
        if piece:
            self._pieces.append(piece)
            self.handle.emit(piece)
