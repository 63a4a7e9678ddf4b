"""How tokens are chosen: the parameters, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import MappingProxyType
from typing import Final, final

from backbay import OptionError

_REALS: Final = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_WHOLE: Final = ("top_k", "penalty_window", "seed", "logprobs")
_OPTIONAL: Final = ("seed", "logprobs")


@final
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen.

    temperature         0 chooses the most likely token; higher values are more random
    top_k               choose among this many most likely tokens; 0: all
    top_p               choose among the most likely tokens that together have this probability; 1: all
    min_p               choose among tokens with this share of the most likely token's probability; 0: all
    repetition_penalty  divides positive logits of tokens in the window, multiplies negative ones; 1: off
    presence_penalty    subtracted from the logits of tokens in the window
    frequency_penalty   subtracted once for each time that a token is in the window
    penalty_window      the last tokens, prompt included, that penalties look at; 0: none, -1: all
    seed                equal seeds and logits give equal answers, also if they are resumed; None: a new seed for each request
    logit_bias          added to the logits of these tokens; -inf forbids a token
    logprobs            give the log-probability of each token, and of this many most likely alternatives
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    logprobs: int | None = None

    def __post_init__(self) -> None:
        self._require_kinds()
        self._require("temperature", self.temperature >= 0 and math.isfinite(self.temperature), "0 or more")
        self._require("top_k", self.top_k >= 0, "0 or more")
        self._require("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")
        self._require("min_p", 0 <= self.min_p <= 1, "from 0 to 1")
        positive = self.repetition_penalty > 0 and math.isfinite(self.repetition_penalty)
        self._require("repetition_penalty", positive, "above 0")
        self._require("presence_penalty", math.isfinite(self.presence_penalty), "a finite number")
        self._require("frequency_penalty", math.isfinite(self.frequency_penalty), "a finite number")
        self._require("penalty_window", self.penalty_window >= -1, "-1 or more")
        self._require("seed", self.seed is None or self.seed >= 0, "0 or more")
        self._require("logprobs", self.logprobs is None or self.logprobs >= 0, "0 or more")
        low = all(bias < math.inf for bias in self.logit_bias.values())  # neither inf nor NaN
        self._require("logit_bias", low, "finite or -inf for each token")

    def _require_kinds(self) -> None:
        for name in _REALS:
            self._require(name, _is_number(getattr(self, name)), "a number")
        for name in _WHOLE:
            absent = name in _OPTIONAL and getattr(self, name) is None
            self._require(name, absent or isinstance(getattr(self, name), Integral), "a whole number")
        given = self.logit_bias
        whole = isinstance(given, Mapping) and all(isinstance(id, Integral) for id in given)
        numbers = whole and all(map(_is_number, given.values()))
        self._require("logit_bias", numbers, "a mapping from tokens to numbers")

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise OptionError(f"{name} must be {rule}, got {getattr(self, name)!r}")

    @property
    def penalizes(self) -> bool:
        asked = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return asked and self.penalty_window != 0


def _is_number(value: object) -> bool:
    """Whether a value is a real number that fits a float."""
    if not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True
