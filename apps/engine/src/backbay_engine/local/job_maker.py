"""Jobs: made of requests once their tokens are known, and checked before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from backbay import CancelledError

from ..arguments import AdapterMix, require_fitting_prompt
from ..errors import RequestError
from ..media.prompts import PromptParts
from ..port.contract import ModelFacts
from ..runner.requests.answer import Timings
from ..runner.requests.generation import AnswerProgress, GenerationJob, check_generation
from ..runner.requests.handle import Receiver
from ..runner.requests.job import Job, MediaRowSource, picture_spans
from ..runner.requests.prompt_jobs import LogitsJob, TokenScoreJob
from ..runner.requests.request import AnyRequest, Generate, Score, ScoreTokens
from ..steps.tokens import Token, media_spans
from ..text.formats import ConstraintMaker
from ..text.tokenizers import Tokenizer
from .adapters import LoadedAdapters


@final
@dataclass(frozen=True)
class JobMaker:
    """Makes the jobs of one model.

    pictures    the most pictures that the cache holds for cross attention
    """

    facts: ModelFacts
    tokenizer: Tokenizer | None
    constraint_maker: ConstraintMaker
    pictures: int
    adapters: LoadedAdapters

    def compile(self, request: AnyRequest) -> AnyRequest:
        """The request with its response format as a constraint; the first one for a large vocabulary takes seconds."""
        if not isinstance(request, Generate) or request.options.response_format is None:
            return request
        constraint = self.constraint_maker.constraint(request.options.response_format)
        return replace(request, options=replace(request.options, constraint=constraint))

    def check(self, request: AnyRequest, tokens: Sequence[Token] = ()) -> None:
        """RequestError or OptionError if the model cannot serve the request; without tokens, its options are checked."""
        self._adapters_of(request)
        if isinstance(request, Generate):
            context, size = self.facts.context, self.facts.vocabulary_size
            check_generation(tokens, request.options, self.tokenizer, context=context, vocabulary_size=size)

    def require_room(self, tokens: int) -> None:
        """ContextOverflowError if a prompt has so many tokens with its pictures and sounds, or more."""
        told = "the prompt has {} tokens or more with its pictures and sounds, the context holds {}"
        require_fitting_prompt(told, tokens, self.facts.context)

    def check_pictures(self, tokens: Sequence[Token]) -> None:
        """RequestError if the model cannot serve a prompt with pictures."""
        context, batch = self.facts.context, self.facts.batch
        if not tokens:
            raise RequestError("the prompt is empty")
        told = "the prompt has {} tokens with its pictures and sounds, the context holds {}"
        require_fitting_prompt(told, len(tokens), context)
        crossing = sum(1 for span in media_spans(tokens) if span.media.crosses)
        if crossing > self.pictures:
            raise RequestError(f"the prompt has {crossing} pictures, the cache holds {self.pictures}")
        longest = max((span.end - span.begin for span in picture_spans(tokens)), default=0)
        if longest > batch:
            raise RequestError(
                f"a picture has {longest} tokens that see each other, and a step takes {batch}: load the model with "
                f"batch={longest}"
            )

    def make(self, request: AnyRequest, tokens: Sequence[Token], rows: MediaRowSource | None = None) -> Job:
        """The job of a request, of its tokens and the rows of its pictures."""
        job = self._job(request, tokens, rows)
        job.adapters = self._adapters_of(request)
        return job

    def _adapters_of(self, request: AnyRequest) -> AdapterMix:
        mix = request.options.adapter if isinstance(request, Generate) else request.adapter
        modalities = request.prompt.modalities if isinstance(request.prompt, PromptParts) else ()
        return self.adapters.resolved(mix, modalities)

    def _job(self, request: AnyRequest, tokens: Sequence[Token], rows: MediaRowSource | None) -> Job:
        size = self.facts.vocabulary_size
        match request:
            case Generate():
                return GenerationJob(
                    tokens,
                    rows,
                    options=request.options,
                    begin_by=request.begin_by,
                    context=self.facts.context,
                    tokenizer=self.tokenizer,
                    vocabulary_size=size,
                )
            case Score():
                return LogitsJob(tokens, rows)
            case ScoreTokens():
                return TokenScoreJob(tokens, top=request.top, vocabulary_size=size)

    def end(self, request: AnyRequest, receiver: Receiver[Any], error: BaseException | None) -> None:
        """End a request that never became a job: with an error, or as cancelled."""
        if error is None and isinstance(request, Generate):
            options = request.options
            timings = Timings(resumed_tokens=len(options.resume))
            AnswerProgress(options, self.tokenizer).give(receiver, timings)
        else:
            receiver.fail(error or CancelledError("the request was cancelled"))
