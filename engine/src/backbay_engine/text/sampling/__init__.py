"""From logits to tokens: sampling and stop strings."""

from .sampler import Sampled, Sampler, SamplingParams, TokenLogprob
from .stops import StopMatcher

__all__ = ["Sampled", "Sampler", "SamplingParams", "StopMatcher", "TokenLogprob"]
