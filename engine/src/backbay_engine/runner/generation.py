"""A request for text, from its prompt to its last token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from numpy.typing import NDArray

from ..text.sampling import Sampled, Sampler, SamplingParams, StopMatcher
from ..text.tokenizers import Tokenizer
from .answer import Clock, Completion, FinishReason, Handle, Timings
from .job import Job
from .slots import Slot

if TYPE_CHECKING:
    from .loop import Runner


@dataclass(frozen=True)
class Ask:
    """What is asked for."""

    prompt: Sequence[int]
    max_tokens: int | None
    stops: Sequence[str]
    num_keep: int | None
    reuse: bool
    sampling: SamplingParams


@final
class Generation(Job):
    """Samples a token from each result, until something ends it."""

    def __init__(self, ask: Ask, tokenizer: Tokenizer | None, vocabulary_size: int, runner: Runner) -> None:
        super().__init__(ask.prompt, reuse=ask.reuse)
        self.ask = ask
        self.handle: Handle[Completion] = Handle(partial(runner.cancel, self))
        self.sampler = Sampler(ask.sampling, vocabulary_size)
        self.sampler.accept(ask.prompt)
        # without a vocabulary there are tokens, but no text and no token that ends it
        self.text = tokenizer.stream(continues=True) if tokenizer is not None else None
        self.end_ids = tokenizer.end_ids if tokenizer is not None else frozenset[int]()
        self.stops = StopMatcher(ask.stops)
        self.timings = Timings(prompt_tokens=len(ask.prompt))
        self._clock = Clock()
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[Sampled] = []
        self._reason: FinishReason = "cancelled"

    def start(self, slot: Slot) -> None:
        super().start(slot)
        self.timings.waited = self._clock.lap()
        self.timings.reused_tokens = self.done

    def wanted(self, count: int) -> Sequence[int]:
        return (count - 1,) if count == self.pending else ()

    def receive(self, rows: NDArray[Any]) -> bool:
        sampled = self.sampler.sample(rows[0])
        if not self._tokens:
            self.timings.prompt = self._clock.lap()
        self._tokens.append(sampled.token)
        if self.ask.sampling.logprobs is not None:
            self._logprobs.append(sampled)
        if sampled.token in self.end_ids:
            return self._over("stop")
        if self.text is not None:
            self._show(self.text.push(sampled.token))
        if self.stops.stop is not None:
            return self._over("stop")
        if len(self._tokens) == self.ask.max_tokens:
            return self._over("length")
        self.todo = [sampled.token]
        return True

    def make_room(self, context: int) -> int | None:
        if self.ask.num_keep is None:
            self._over("length")
            return None
        return self.ask.num_keep

    def finish(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.handle.fail(error)
            return
        if self.text is not None:
            self._show(self.text.finish(), last=True)
        self.timings.generation = self._clock.lap() if self._tokens else 0.0
        self.timings.tokens = len(self._tokens)
        logprobs = None if self.ask.sampling.logprobs is None else self._logprobs
        text, stop = "".join(self._pieces), self.stops.stop
        self.handle.settle(Completion(text, self._tokens, self._reason, logprobs, stop, self.timings))

    def _over(self, reason: FinishReason) -> bool:
        self._reason = reason
        return False

    def _show(self, text: str, *, last: bool = False) -> None:
        piece = self.stops.push(text) + (self.stops.finish() if last else "")
        if piece:
            self._pieces.append(piece)
            self.handle.emit(piece)
