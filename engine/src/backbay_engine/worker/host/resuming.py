"""Requests for text that go on in another worker when theirs dies."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace
from typing import final

from ...runner.requests.answer import Completion, TokenStep
from ...runner.requests.request import Generate
from ...text.sampling import Sampled


@final
class Resuming:
    """What a request has given so far, and how often it may go on elsewhere."""

    def __init__(self, request: Generate, retries: int) -> None:
        self._request, self._left = seeded(request), retries
        self._tokens, self._logprobs = list(request.options.resume), list[Sampled]()
        self._resumed = self._ended = False

    @property
    def request(self) -> Generate:
        return self._request

    def note(self, step: TokenStep) -> bool:
        """Take note of a step; False if the answer's last step was given before the worker died."""
        if self._ended:
            return False
        self._tokens += step.tokens
        self._logprobs += step.logprobs or ()
        self._ended = step.finish_reason is not None
        return True

    def again(self) -> bool:
        """Make the request that goes on after what was given; False if it has gone on too often."""
        if not self._left:
            return False
        self._left -= 1
        options = self._request.options
        if len(self._tokens) > len(options.resume):  # it had begun before its deadline
            options = replace(options, resume=tuple(self._tokens))
            self._request = replace(self._request, options=options, begin_by=math.inf)
        self._resumed = True
        return True

    def whole(self, answer: Completion) -> Completion:
        """The answer with the log-probabilities of all workers."""
        if self._resumed and answer.logprobs is not None:
            answer.logprobs = self._logprobs
        return answer


def seeded(request: Generate) -> Generate:
    """The request with a seed, so that another worker makes the same choices."""
    options = request.options
    if options.sampling.seed is not None:
        return request
    sampling = replace(options.sampling, seed=secrets.randbits(63))
    return replace(request, options=replace(options, sampling=sampling))
