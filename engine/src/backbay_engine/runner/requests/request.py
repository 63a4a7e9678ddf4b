"""Requests: values that say what the steps of a model are to compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ...images.prompts import Parts
from .answer import Completion
from .options import GenerationOptions

Prompt: TypeAlias = Sequence[int] | Parts
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


@final
@dataclass(frozen=True)
class ScoreTokens(Request[int]):
    """Asks for the log-probabilities of the tokens, which the steps tell; the result is the number of tokens."""

    prompt: Sequence[int]
    top: int


AnyRequest: TypeAlias = Generate | Score | ScoreTokens
