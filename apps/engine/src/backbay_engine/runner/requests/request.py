"""Requests: values that say what the steps of a model are to compute, with the options of those for text."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any, Final, Generic, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from backbay.gguf import nearest

from ...arguments import AdapterMix, adapter_mix, stop_strings, token_ids, whole_number
from ...errors import RequestError, UnknownOptionError
from ...media.prompts import PromptParts
from ...text.formats import ResponseFormat, response_format_of
from ...text.sampling import Constraint, SamplingParams
from ...text.transcripts import TranscriptRules
from .answer import Completion


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How a prompt is continued.

    max_tokens  the most tokens of the answer; None: as many as the context holds
    stop        strings that end the answer; the answer does not contain them
    num_keep    when the context is full, keep this many first tokens, forget the older half of the others, and go
                on; None: the answer ends there, with the reason "length"
    resume      the tokens of an answer that was interrupted: go on after them as if it had not been
    response_format  what the answer must be: a JSON schema, a pydantic model, a regular expression, a grammar, choices
    constraint  says which tokens may come next; it serves one request
    shown       control tokens whose text is in the answer's text, such as marks of a tool's call; others show nothing
    reuse       whether the cache of an earlier prompt serves the part that both prompts begin with
    speculate   whether tokens may be guessed, if the model was loaded with `speculate` or `draft`
    adapter     the adapters that change the model, with their scales
    session     a name that prompts with the same beginning share: an engine of several machines serves them by one
    sampling    how tokens are chosen
    transcript  the rules of a transcript, which `transcribe` gives
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    num_keep: int | None = None
    reuse: bool = True
    adapter: AdapterMix = ()
    session: str | None = None
    resume: tuple[int, ...] = ()
    shown: frozenset[int] = frozenset()
    response_format: ResponseFormat | None = None
    constraint: Constraint | None = None
    speculate: bool = True
    sampling: SamplingParams = field(default_factory=SamplingParams)
    transcript: TranscriptRules | None = None

    def forbidding(self, ids: Collection[int]) -> GenerationOptions:
        """These options, with tokens that never come."""
        if not ids:
            return self
        bias = {**self.sampling.logit_bias, **dict.fromkeys(ids, float("-inf"))}
        return replace(self, sampling=replace(self.sampling, logit_bias=bias))


_OWN: Final = {each.name for each in fields(GenerationOptions)} - {"sampling", "transcript"}
_ALL: Final = sorted(_OWN | {each.name for each in fields(SamplingParams)})


def options_of(given: Mapping[str, Any], context: int) -> GenerationOptions:
    """Options by name, checked for sequences of `context` tokens; sampling's are the fields of SamplingParams."""
    for name in given:
        if name not in _ALL:
            raise UnknownOptionError(f"unknown option {name!r}{nearest(name, _ALL)}")
    own = {name: value for name, value in given.items() if name in _OWN}
    own["stop"] = stop_strings(own.get("stop"))
    own["adapter"] = adapter_mix(own.get("adapter"))
    for name, kind in (("resume", tuple), ("shown", frozenset)):
        ids = own.get(name)
        own[name] = kind(() if ids is None else token_ids(ids, f"{name} must be token ids"))
    for name, least, most in (("max_tokens", 1, None), ("num_keep", 0, context - 2)):
        if own.get(name) is not None:
            own[name] = whole_number(name, own[name], least, most)
    session = own.get("session")
    if session is not None and not isinstance(session, str):
        raise RequestError(f"session must be a text, got {session!r}")
    constraint = own.get("constraint")
    if constraint is not None and not isinstance(constraint, Constraint):
        raise RequestError(f"constraint must have the methods mask and accept, got {constraint!r}")
    own["response_format"] = response_format_of(own.get("response_format"))
    if constraint is not None and own["response_format"] is not None:
        raise RequestError("give a constraint or a response_format, not both")
    if not isinstance(own.get("speculate", True), bool):
        raise RequestError(f"speculate must be True or False, got {own['speculate']!r}")
    sampling = SamplingParams(**{name: value for name, value in given.items() if name not in _OWN})
    return GenerationOptions(**own, sampling=sampling)


Prompt: TypeAlias = Sequence[int] | PromptParts
"""Checked token ids, or parts of which only the form is checked."""
T_co = TypeVar("T_co", covariant=True)
NUMBERS = count(1)
"""The numbers of requests and questions, of all models of this process."""


class Request(Generic[T_co]):
    """Asks for a result of this type."""


@final
@dataclass(frozen=True)
class Generate(Request[Completion]):
    """Asks for text. The request is to begin by `begin_by`, a time of `time.monotonic`."""

    prompt: Prompt
    options: GenerationOptions
    begin_by: float = math.inf


@final
@dataclass(frozen=True)
class Score(Request[NDArray[np.float32]]):
    """Asks for the logits after each token, (tokens, vocabulary)."""

    prompt: Prompt
    adapter: AdapterMix = ()


@final
@dataclass(frozen=True)
class ScoreTokens(Request[int]):
    """Asks for the log-probabilities of the tokens, which the steps tell; the result is the number of tokens."""

    prompt: Sequence[int]
    top: int
    adapter: AdapterMix = ()


AnyRequest: TypeAlias = Generate | Score | ScoreTokens
