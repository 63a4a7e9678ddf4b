"""From logits to tokens: sampling and stop strings."""

from .params import SamplingParams
from .sampler import Sampled, Sampler, TokenLogprob, with_logprobs
from .stops import StopMatcher

__all__ = ["Sampled", "Sampler", "SamplingParams", "StopMatcher", "TokenLogprob", "with_logprobs"]
