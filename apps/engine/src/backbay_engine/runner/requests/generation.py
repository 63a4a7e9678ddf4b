"""A request for text, from its prompt to its last token, and its answer as it grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, final

from numpy.typing import NDArray

from ...errors import ContextOverflowError, RequestError
from ...steps.tokens import Token, encoder_length, ids_of, plain_ids
from ...text.sampling.constraint import Constraint
from ...text.sampling.sampler import Sampled, Sampler, require_known_biases
from ...text.sampling.stops import StopMatcher
from ...text.tokenizers import Tokenizer
from ..slots import Slot, shift_range
from .answer import Completion, FinishReason, Timings, TokenStep
from .handle import Receiver
from .job import Job, MediaRowSource
from .request import GenerationOptions
from .token_masks import MaskThread

if TYPE_CHECKING:
    from ..speculation import GuessTracker


@final
class AnswerProgress:
    """An answer as it grows: its tokens, those of `resume` first, the text that is certain, and why it ended.

    RequestError if there is no going on after `resume`.
    """

    def __init__(self, options: GenerationOptions, tokenizer: Tokenizer | None) -> None:
        # a file without a vocabulary gives tokens, but no text and no end-of-text token
        self._text = None if tokenizer is None else tokenizer.stream(continues=True, shown=options.shown)
        self._end_ids = frozenset[int]() if tokenizer is None else tokenizer.end_ids
        self._stops, self._limit = StopMatcher(options.stop), options.max_tokens
        self._pieces: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[Sampled] | None = None if options.sampling.logprobs is None else []
        self.reason: FinishReason | None = None
        for count, token in enumerate(options.resume):  # the steps that gave them gave their text
            if self.reason is not None:
                raise RequestError(
                    f"resume has {len(options.resume)} tokens, but the answer is over after {count} of them"
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

    def give(self, to: Receiver[Completion], timings: Timings, last: TokenStep | None = None) -> None:
        """Give the last step, with the text that was held back, and the whole answer."""
        reason = self.reason or "cancelled"
        step = last or TokenStep("", (), None if self.logprobs is None else ())
        to.emit(step._replace(text=step.text + self._rest(), finish_reason=reason))
        timings.tokens = len(self.tokens)
        text, stop = "".join(self._pieces), self._stops.stop
        to.succeed(Completion(text, self.tokens, reason, self.logprobs, stop, timings))

    def _rest(self) -> str:
        """The text that was held back, once nothing more comes."""
        if self._text is None:
            return ""
        rest = self._stops.push(self._text.finish()) + self._stops.finish()
        self._pieces.append(rest)
        return rest


@final
class GenerationJob(Job):
    """Samples tokens until the answer ends.

    guesses  those of its answer, if the runner speculates
    """

    def __init__(
        self,
        prompt: Sequence[Token],
        pictures: MediaRowSource | None = None,
        *,
        options: GenerationOptions,
        begin_by: float = math.inf,
        context: int,
        tokenizer: Tokenizer | None,
        vocabulary_size: int,
    ) -> None:
        self.options, self.text_end = options, encoder_length(prompt)
        self.sampler = Sampler(options.sampling, vocabulary_size)
        ids = prompt if pictures is None else ids_of(prompt)
        self.sampler.accept(islice(ids, self.text_end, None))  # type: ignore[arg-type]  # all are ids
        self.sampler.resume(options.resume)
        self.text = AnswerProgress(options, tokenizer)
        self.timings = Timings(prompt_tokens=len(prompt), resumed_tokens=len(options.resume))
        self.guesses: GuessTracker | None = None
        self._mark = perf_counter()  # the end of the last period of `timings`
        self._last: TokenStep | None = None  # held until the answer's end is known
        self._mask: Future[bytes | None] | None = None  # of the step that the backend computes
        self._begun = False
        tokens = answer_sequence(prompt, options, self.text, context)
        super().__init__(tokens, pictures, reuse=options.reuse)
        self.begin_by = begin_by

    @property
    def over(self) -> bool:
        return self.text.reason is not None

    @property
    def made(self) -> int:
        """Tokens of the answer that were made here."""
        return len(self.text.tokens) - self.timings.resumed_tokens

    @property
    def answering(self) -> bool:
        return self.made > 0 and self.at_last_token

    @property
    def known_ids(self) -> list[int]:
        """The ids of all its tokens so far, those of a text for the encoder included."""
        return plain_ids(ids_of([*self.slot.tokens, *self.todo[: len(self.todo) - len(self.guess)]]))

    def start(self, slot: Slot) -> None:
        super().start(slot)
        self.timings.waited = self._lap()
        self.timings.reused_tokens = min(self.done, self.timings.prompt_tokens)

    def arrived(self, seconds: float) -> None:
        self.timings.pictures = seconds

    def wanted(self, count: int) -> Sequence[int]:
        if count < self.pending:
            return ()
        return range(0 if self.answering else count - 1 - len(self.guess), count)  # few shapes of steps

    def propose(self, guess: Sequence[int]) -> None:
        """Let the next step verify guesses of the tokens after the pending one."""
        self.guess, self.todo = guess, [*self.todo, *guess]

    def guessable(self, context: int) -> int:
        """The most tokens that may be guessed now."""
        limit = self.options.max_tokens
        left = context if limit is None else limit - len(self.text.tokens)
        return max(0, min(left - 1, context - self.done - self.pending))

    def take_up(self, tokens: Sequence[Token]) -> None:
        """Compute tokens again that the slot lost with a wrong guess; they are the last ones before the pending one."""
        self.todo, self.again = [*tokens, *self.todo], len(tokens)

    def go_back(self, tokens: Sequence[Token]) -> None:
        self.todo, self.guess = self.todo[: len(self.todo) - len(self.guess)], ()
        super().go_back(tokens)

    def receive(self, rows: NDArray[Any]) -> int:
        """Choose a token by each row, as long as the guesses before it were right."""
        guess, self.guess, self.again, right = self.guess, (), 0, 0
        rows = rows[len(rows) - 1 - len(guess) :]  # those before are of tokens that were computed again
        self._choose(rows[0])
        while not self.over and right < len(guess) and guess[right] == self.todo[0] and not self.cancelled:
            right += 1
            self._choose(rows[right])
        self.timings.guessed_tokens += len(guess)
        self.timings.accepted_tokens += right
        if self.guesses is not None and guess:
            self.guesses.verified(len(guess), right)
        return len(guess) - right

    def _choose(self, row: NDArray[Any]) -> None:
        constraint = self.options.constraint
        mask = None if constraint is None else self._next_mask()
        if mask == b"":
            self.text.reason = "stop"
            return
        rules = self.options.transcript
        sampled = self.sampler.sample(row if rules is None else rules.allowed(row, self.text.tokens), mask)
        if not self.made:
            self.timings.prompt = self._lap()
        if self.text.logprobs is not None:
            self.text.logprobs.append(sampled)
        if self._begun and constraint is not None:
            constraint.accept(sampled.token)
        text = self.text.add(sampled.token)
        step = TokenStep(text, (sampled.token,), None if self.text.logprobs is None else (sampled,))
        if self.over:
            self._last = step
            return
        self.handle.emit(step)
        self.todo = [sampled.token]
        if self.guesses is not None:
            self.guesses.learn(sampled.token)

    def look_ahead(self, count: int, ahead: MaskThread) -> None:
        constraint = self.options.constraint
        if constraint is None or self._mask is not None or not self.wanted(count):
            return
        begins, self._begun = not self._begun, True
        self._mask = ahead.submit(
            partial(_first_mask, constraint, self.options.resume) if begins else constraint.mask
        )

    def _next_mask(self) -> bytes | None:
        """The mask of the next token: computed ahead, or now if it is behind a guess."""
        if self._mask is None:
            return self.options.constraint.mask() if self._begun and self.options.constraint else None
        mask, self._mask = self._mask.result(), None
        return mask

    def make_room(self, context: int) -> int | None:
        keep = kept_tokens(self.options, self.text_end, context)
        if keep is None:
            self.text.reason = "length"
        return keep

    def finish(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.handle.fail(error)
            return
        self.timings.generation = self._lap() if self.made else 0.0
        self.text.give(self.handle, self.timings, self._last)

    def _lap(self) -> float:
        last, self._mark = self._mark, perf_counter()
        return self._mark - last


def _first_mask(constraint: Constraint, resume: Sequence[int]) -> bytes | None:
    """The mask after the tokens with which the answer goes on."""
    for token in resume:
        constraint.accept(token)
    return constraint.mask()


def check_generation(
    prompt: Sequence[Token],
    options: GenerationOptions,
    tokenizer: Tokenizer | None,
    *,
    context: int,
    vocabulary_size: int,
) -> None:
    """RequestError or OptionError if a prompt cannot be continued so."""
    require_known_biases(options.sampling.logit_bias, vocabulary_size)
    answer = AnswerProgress(options, tokenizer)
    if options.resume:  # otherwise the prompt's length alone counts, which was checked
        answer_sequence(prompt, options, answer, context)


def answer_sequence(
    prompt: Sequence[Token], options: GenerationOptions, answer: AnswerProgress, context: int
) -> Sequence[Token]:
    """The tokens that a sequence holds after the answer so far, without those that shifts have forgotten.

    An answer for which there is no more room gets its reason to end.
    """
    tokens = [*prompt, *options.resume] if options.resume else prompt
    while answer.reason is None and len(tokens) > context and options.resume:
        keep = kept_tokens(options, encoder_length(prompt), context)
        if keep is None:
            answer.reason = "length"
            if len(tokens) > context + 1:  # an answer's last token needs no place
                told = f"the prompt and resume have {len(tokens)} tokens, the context holds {context}"
                raise ContextOverflowError(told, len(tokens), context)
            break
        keep, end = shift_range(tokens[:context], keep)
        tokens = [*tokens[:keep], *tokens[end:]]
    return tokens


def kept_tokens(options: GenerationOptions, text_end: int, context: int) -> int | None:
    """The number of first tokens to keep when the context is full; None: the answer ends."""
    keep = options.num_keep
    if keep is not None and text_end:  # the decoder attends to the whole text
        keep = max(keep, text_end + 1)
    return None if keep is None or keep > context - 2 else keep
