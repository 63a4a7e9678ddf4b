"""From logits to tokens: sampling and stop strings."""

from .constraint import Constraint
from .params import SamplingParams
from .sampler import Sampled, Sampler, TokenLogprob
from .stops import StopMatcher

__all__ = ["Constraint", "Sampled", "Sampler", "SamplingParams", "StopMatcher", "TokenLogprob"]
