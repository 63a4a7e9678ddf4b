"""A request for text, from its prompt to its last token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, final

from numpy.typing import NDArray

from ...errors import ContextOverflowError
from ...steps.tokens import Token, ids_of, text_length
from ...text.sampling import Sampled, Sampler, require_known
from ...text.tokenizers import Tokenizer
from ..ahead import Ahead
from ..slots import Slot, forgotten
from .answer import Clock, Timings, TokenStep
from .answer_text import AnswerText
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
        self.text = AnswerText(options, tokenizer)
        self.timings = Timings(prompt_tokens=len(prompt), resumed_tokens=len(options.resume))
        self._clock = Clock()
        self._logprobs: list[Sampled] | None = None if options.sampling.logprobs is None else []
        self._last: TokenStep | None = None  # held until the answer's end is known
        self._mask: Future[bytes | None] | None = None  # of the step that the backend computes
        self._begun = False
        super().__init__(sequence_of(prompt, options, self.text, context), pictures, reuse=options.reuse)
        self.begin_by, self.over = begin_by, self.text.reason is not None
        self.speculates = options.speculate

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
            self.text.reason = "stop"
            return False
        sampled = self.sampler.sample(row, mask)
        if len(self.text.tokens) == self.timings.resumed_tokens:
            self.timings.prompt = self._clock.lap()
        logprobs = None
        if self._logprobs is not None:
            self._logprobs.append(sampled)
            logprobs = (sampled,)
        step = TokenStep(self._take(sampled.token), (sampled.token,), logprobs)
        self.taken += 1
        if self.text.reason is not None:
            self._last = step
            return False
        self.handle.emit(step)
        self.todo = [sampled.token]
        if self.guesses is not None:
            self.guesses.learn(sampled.token)
        return True

    def guessable(self, context: int) -> int:
        limit = self.options.max_tokens
        left = context if limit is None else limit - len(self.text.tokens)
        return max(0, min(left, context - self.done) - 1)

    def sampler_ahead(self) -> Sampler:
        return self.sampler.fork()

    def look_ahead(self, count: int, ahead: Ahead) -> None:
        constraint = self.options.constraint
        if constraint is None or self._mask is not None or not self.wanted(count):
            return
        if not self._begun:
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
        keep = first_kept(self.options, self.text_end, context)
        if keep is None:
            self.text.reason = "length"
        return keep

    def finish(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.handle.fail(error)
            return
        made = len(self.text.tokens) > self.timings.resumed_tokens
        self.timings.generation = self._clock.lap() if made else 0.0
        self.text.give(self.handle, self.timings, self._last, self._logprobs)

    def _take(self, token: int) -> str:
        """The text that is certain after the answer's next token."""
        if self._begun and self.options.constraint is not None:
            self.options.constraint.accept(token)
        return self.text.add(token)


def check_generation(
    prompt: Sequence[Token],
    options: GenerationOptions,
    tokenizer: Tokenizer | None,
    *,
    context: int,
    vocabulary_size: int,
) -> None:
    """RequestError or OptionError if a prompt cannot be continued so."""
    require_known(options.sampling.logit_bias, vocabulary_size)
    answer = AnswerText(options, tokenizer)
    if options.resume:  # otherwise the prompt's length alone counts, which was checked
        sequence_of(prompt, options, answer, context)


def sequence_of(
    prompt: Sequence[Token], options: GenerationOptions, answer: AnswerText, context: int
) -> list[Token]:
    """The tokens that a sequence holds after the answer so far, without those that shifts have forgotten.

    An answer for which there is no more room gets its reason to end.
    """
    tokens = [*prompt, *options.resume]
    while answer.reason is None and len(tokens) > context and options.resume:
        keep = first_kept(options, text_length(prompt), context)
        if keep is None:
            answer.reason = "length"
            if len(tokens) > context + 1:  # an answer's last token needs no place
                told = f"the prompt and resume have {len(tokens)} tokens, the context holds {context}"
                raise ContextOverflowError(told, len(tokens), context)
            break
        keep, end = forgotten(tokens[:context], keep)
        del tokens[keep:end]
    return tokens


def first_kept(options: GenerationOptions, text_end: int, context: int) -> int | None:
    """The number of first tokens to keep when the context is full; None: the answer ends."""
    keep = options.num_keep
    if keep is not None and text_end:  # the decoder attends to the whole text
        keep = max(keep, text_end + 1)
    return None if keep is None or keep > context - 2 else keep
