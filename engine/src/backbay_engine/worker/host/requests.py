"""Requests as a host checks and sends them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...images.prompts import Parts
from ...port.contract import Facts
from ...runner.requests.generation import check_generation
from ...runner.requests.request import Generate, Request
from ...text.formats import check
from ...text.tokenizers import Tokenizer


def sendable(request: Request[Any], facts: Facts, tokenizer: Tokenizer | None) -> Request[Any]:
    """A request that can be pickled; wrong options are refused here, before the worker does."""
    if not isinstance(request, Generate):
        return request
    prompt, options = request.prompt, request.options
    if options.response_format is not None:
        check(options.response_format)
    known = () if isinstance(prompt, Parts) else prompt
    check_generation(known, options, tokenizer, context=facts.context, vocabulary_size=facts.vocabulary_size)
    plain = replace(options.sampling, logit_bias=dict(options.sampling.logit_bias))
    return replace(request, options=replace(options, sampling=plain))
