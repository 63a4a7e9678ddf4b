"""A step of random tokens, by whose keys a cache learns how to store keys."""

from __future__ import annotations

from typing import Final

import numpy as np

from backbay.plugin import Cancel

from ..steps.step import step_of
from .traced_steps import StepCache

SAMPLE: Final = 64  # tokens, at most


def let_cache_learn(steps: StepCache, room: int, cancel: Cancel | None) -> None:
    """Run a step of as many tokens as there is room for, if the cache learns from keys; the cache then is empty."""
    cache, model = steps.cache, steps.model
    if cache is None or not cache.learns:
        return
    ids = np.random.default_rng(0).integers(0, model.vocabulary_size, min(SAMPLE, room))
    tokens = model.prompt(ids.tolist())
    steps.run(step_of([(0, 0, tokens)], np.array([len(tokens) - 1], np.int32)), cancel)
    cache.learn(0)
    cache.remove(0, 0)
