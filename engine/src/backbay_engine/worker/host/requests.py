"""Requests for text as a host checks and sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from ...engines.contract import Facts, Prompt
from ...engines.saving import answered, plain_prompt
from ...errors import RequestError
from ...images.prompts import Parts
from ...runner.requests.generation import Generation
from ...runner.requests.handle import Handle
from ...runner.requests.options import GenerationOptions
from ...snapshots import Snapshot
from ...snapshots.requests import request_of
from ...text.formats import check
from ...text.tokenizers import Tokenizer
from ..wire.setup import Aside, Generate, SavePrompt, SaveRequest


@final
@dataclass(frozen=True)
class Sent:
    """A request for text that was sent to a worker, by its number."""

    number: int
    request: Generate


def listed(prompt: Prompt) -> Prompt:
    return prompt if isinstance(prompt, Parts) else list(prompt)


def generate_request(
    prompt: Prompt, options: GenerationOptions, begin_by: float, facts: Facts, tokenizer: Tokenizer | None
) -> Generate:
    """The request for a text; wrong options are refused here, before the worker does."""
    if options.response_format is not None:
        check(options.response_format)
    Generation(
        prompt if options.resume and not isinstance(prompt, Parts) else (),
        options=options,
        context=facts.context,
        tokenizer=tokenizer,
        vocabulary_size=facts.vocabulary_size,
    )
    plain = replace(options.sampling, logit_bias=dict(options.sampling.logit_bias))
    return Generate(listed(prompt), replace(options, sampling=plain), begin_by)


def saved(source: Sequence[int] | Handle[Any], ask: Callable[[Aside], Any]) -> Snapshot:
    """The snapshot of a request or a prompt, by asking the worker."""

    def save_tokens(prompt: Sequence[int], answer: Sequence[int] = ()) -> Snapshot:
        return Snapshot.from_bytes(ask(SavePrompt(list(prompt), list(answer))))

    if not isinstance(source, Handle):
        return save_tokens(source)
    sent = source.request
    if not isinstance(sent, Sent):
        raise RequestError("only requests for text can be saved")
    prompt, options = plain_prompt(sent.request.prompt), sent.request.options
    request_of(options, 0, ())  # refuses what cannot be saved
    data = None if source.done else ask(SaveRequest(sent.number, sent.request))
    if data:
        return Snapshot.from_bytes(data)
    return answered(save_tokens, prompt, options, source.result().tokens)
