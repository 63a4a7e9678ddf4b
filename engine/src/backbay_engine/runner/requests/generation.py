"""A request for text, from its prompt to its last token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, final

from numpy.typing import NDArray

from ...errors import ContextOverflowError, RequestError
from ...steps.texts import text_length
from ...steps.tokens import Token, ids_of
from ...text.sampling import Sampled, Sampler, StopMatcher
from ...text.tokenizers import Tokenizer
from ..ahead import Ahead
from ..slots import Slot, forgotten
from .answer import Clock, Completion, FinishReason, Timings, TokenStep
from .job import Job, RowsOfPictures
from .options import GenerationOptions


@final
class Generation(Job):
    """Samples tokens until the answer ends."""

    generates = True

    def __init__(
        self,
        prompt: Sequence[Token],
        pictures: RowsOfPictures | None = None,
        *,
        options: GenerationOptions,
        begin_by: float = math.inf,
        context: int,
        tokenizer: Tokenizer | None,
        vocabulary_size: int,
    ) -> None:
        self.options, self.text_end = options, text_length(prompt)
        self.sampler = Sampler(options.sampling, vocabulary_size)
        ids = prompt if pictures is None else ids_of(prompt)
        self.sampler.accept(ids[self.text_end :])  # type: ignore[arg-type]  # all are ids
        self.sampler.resume(options.resume)
        # a file without a vocabulary gives tokens, but no text and no end-of-text token
        self.text = tokenizer.stream(continues=True, shown=options.shown) if tokenizer is not None else None
        self.end_ids = tokenizer.end_ids if tokenizer is not None else frozenset[int]()
        self.stops = StopMatcher(options.stop)
        self.timings = Timings(prompt_tokens=len(prompt), resumed_tokens=len(options.resume))
        self._clock = Clock()
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[Sampled] = []
        self._reason: FinishReason | None = None
        self._last: TokenStep | None = None  # held until the answer's end is known
        self._mask: Future[bytes | None] | None = None  # of the step that the backend computes
        self._begun = False
        self._resume()
        super().__init__(self._sequence(prompt, context), pictures, reuse=options.reuse)
        self.begin_by, self.over = begin_by, self._reason is not None
        self.speculates = options.speculate

    @property
    def answer(self) -> list[int]:
        """The tokens of the answer so far."""
        return self._tokens

    def _resume(self) -> None:
        """Take the tokens of the interrupted answer; their text was given by the steps that gave them."""
        for count, token in enumerate(self.options.resume):
            if self._reason is not None:
                raise RequestError(
                    f"resume has {len(self.options.resume)} tokens, but the answer is over after {count} of them"
                )
            self._take(token)
        if self._reason is not None:
            self._rest()

    def _sequence(self, prompt: Sequence[Token], context: int) -> list[Token]:
        """The tokens that the sequence holds after the answer so far, without those that shifts have forgotten."""
        tokens = [*prompt, *self.options.resume]
        while self._reason is None and len(tokens) > context and self.options.resume:
            keep = self.make_room(context)
            if keep is None:
                if len(tokens) > context + 1:  # an answer's last token needs no place
                    told = f"the prompt and resume have {len(tokens)} tokens, the context holds {context}"
                    raise ContextOverflowError(told, len(tokens), context)
                break
            keep, end = forgotten(tokens[:context], keep)
            del tokens[keep:end]
        return tokens

    def start(self, slot: Slot) -> None:
        super().start(slot)
        self.timings.waited = self._clock.lap()
        self.timings.reused_tokens = min(self.done, self.timings.prompt_tokens)

    def arrived(self, seconds: float) -> None:
        self.timings.pictures = seconds

    def wanted(self, count: int) -> Sequence[int]:
        return range(count - 1 - len(self.guess), count) if count == self.pending else ()

    def receive(self, rows: NDArray[Any]) -> bool:
        """Choose a token by each row, as long as the guesses before it were right."""
        guess, self.guess, self.taken, right = self.guess, [], 0, 0
        goes_on = self._choose(rows[0])
        while goes_on and right < len(guess) and guess[right] == self.todo[0] and not self.cancelled:
            right += 1
            goes_on = self._choose(rows[right])
        self.refused = len(guess) - right
        self.timings.guessed_tokens += len(guess)
        self.timings.accepted_tokens += right
        if self.guesses is not None and guess:
            self.guesses.verified(len(guess), right)
        return goes_on

    def _choose(self, row: NDArray[Any]) -> bool:
        """Choose the next token by its logits; False if it is the last one."""
        mask = self._taken_mask() if self.options.constraint is not None else None
        if mask == b"":
            self._reason = "stop"
            return False
        sampled = self.sampler.sample(row, mask)
        if len(self._tokens) == self.timings.resumed_tokens:
            self.timings.prompt = self._clock.lap()
        logprobs = None
        if self.options.sampling.logprobs is not None:
            self._logprobs.append(sampled)
            logprobs = (sampled,)
        step = TokenStep(self._take(sampled.token), (sampled.token,), logprobs)
        self.taken += 1
        if self._reason is not None:
            self._last = step
            return False
        self.handle.emit(step)
        self.todo = [sampled.token]
        if self.guesses is not None:
            self.guesses.learn(sampled.token)
        return True

    def guessable(self, context: int) -> int:
        limit = self.options.max_tokens
        left = context if limit is None else limit - len(self._tokens)
        return max(0, min(left, context - self.done) - 1)

    def sampler_ahead(self) -> Sampler:
        return self.sampler.fork()

    def look_ahead(self, count: int, ahead: Ahead) -> None:
        constraint = self.options.constraint
        if constraint is None or self._mask is not None or not self.wanted(count):
            return
        if not self._begun:  # only now, as jobs are also made to check options
            self._begun = True
            for token in self.options.resume:
                constraint.accept(token)
        self._mask = ahead.compute(constraint.mask)

    def _taken_mask(self) -> bytes | None:
        """The mask of the next token: computed ahead, or now if it is behind a guess."""
        if self._mask is None:
            return self.options.constraint.mask() if self._begun and self.options.constraint else None
        mask, self._mask = self._mask.result(), None
        return mask

    def make_room(self, context: int) -> int | None:
        keep = self.options.num_keep
        if keep is not None and self.text_end:  # the decoder attends to the whole text
            keep = max(keep, self.text_end + 1)
        if keep is None or keep > context - 2:
            self._reason = "length"
            return None
        return keep

    def finish(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.handle.fail(error)
            return
        reason = self._reason or "cancelled"
        last = self._last or TokenStep("", (), None if self.options.sampling.logprobs is None else ())
        self.handle.emit(last._replace(text=last.text + self._rest(), finish_reason=reason))
        made = len(self._tokens) > self.timings.resumed_tokens
        self.timings.generation = self._clock.lap() if made else 0.0
        self.timings.tokens = len(self._tokens)
        logprobs = None if self.options.sampling.logprobs is None else self._logprobs
        text, stop = "".join(self._pieces), self.stops.stop
        self.handle.succeed(Completion(text, self._tokens, reason, logprobs, stop, self.timings))

    def _take(self, token: int) -> str:
        """The text that is certain after the answer's next token, which may be its last one."""
        self._tokens.append(token)
        if self._begun and self.options.constraint is not None:
            self.options.constraint.accept(token)
        if token in self.end_ids:
            self._reason = "stop"
            return ""
        piece = "" if self.text is None else self.stops.push(self.text.push(token))
        if piece:
            self._pieces.append(piece)
        if self.stops.stop is not None:
            self._reason = "stop"
        elif len(self._tokens) == self.options.max_tokens:
            self._reason = "length"
        return piece

    def _rest(self) -> str:
        """The text that was held back, once nothing more comes."""
        if self.text is None:
            return ""
        rest = self.stops.push(self.text.finish()) + self.stops.finish()
        self._pieces.append(rest)
        return rest
