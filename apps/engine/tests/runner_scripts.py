"""What tests of requests share: prompts of models without a vocabulary, and steps that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backbay_engine.runner.speculation import ModelSource, StepTimes
from backbay_engine.runner.traced_steps import StepCache

OPTIONS = {"temperature": 0, "logit_bias": {2: float("-inf")}}
ALONE = {**OPTIONS, "reuse": False}


def prompt(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 64, count).tolist()


def let_guesses_pay(patch: pytest.MonkeyPatch) -> None:
    """As if steps of all sizes took equally long: what is guessed depends on hope alone."""
    patch.setattr(StepTimes, "known", lambda self, tokens: 1.0)
    patch.setattr(StepTimes, "seconds", lambda self, tokens, base: 1.0)
    patch.setattr(ModelSource, "seconds", lambda self, counts: 0.0)


def fail_once(patch: pytest.MonkeyPatch, failing: int) -> Callable[[], int]:
    """Let the step of this number fail, of those that several sequences share; gives how many there were."""
    compute, shared = StepCache._compute, []

    def fails_once(self: StepCache, step: Any, plan: Any, cancel: Any) -> Any:
        shared.append(len(set(step.sequences.tolist())) > 1)
        result = compute(self, step, plan, cancel)
        if shared[-1] and sum(shared) == failing:
            raise RuntimeError("injected")
        return result

    patch.setattr(StepCache, "_compute", fails_once)
    return lambda: sum(shared)
