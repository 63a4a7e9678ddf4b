"""The steps of a model file, compiled so that the conformance suite can try the calls that they make."""

from __future__ import annotations

from backbay import Backend
from backbay_conformance.plugin import model_steps

from ..cache import CacheSizes
from ..models import load_model
from ..models.keys import CONTEXT_LENGTH
from ..runner.traced_steps import StepCache
from ..steps.step import largest_steps

CONTEXT = 512
SHAPES = ((33, 1), (4, 4))
"""Tokens of a prompt, and sequences that decode together."""


@model_steps
def compile_steps(backend: Backend) -> None:
    """Prompts and decoding of a model that generates, or texts of a model that embeds."""
    context = min(CONTEXT, CONTEXT_LENGTH.of(backend.config, CONTEXT))
    for batch, parallel in SHAPES:
        model = load_model(backend, context)
        cache = model.new_cache()
        if cache is not None:
            dtype = backend.cache_config().dtypes[0]
            cache.open(backend, CacheSizes(parallel, context, batch, dtype))
        decoding, uniform = cache is not None, cache is not None and cache.is_uniform
        steps = largest_steps(batch, parallel, context, decoding=decoding, uniform=uniform)
        StepCache(model, cache).reserve(steps)  # who has opened the backend closes it
