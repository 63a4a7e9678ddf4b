"""Speculation: guesses of the next tokens of answers, which one step of the model verifies.

`GenerationJob` in ../requests/generation.py compares the guesses with the tokens that it chooses.
"""

from .draft_model import DraftModel, ModelSource
from .head_source import HeadSource
from .ngrams import NgramSource
from .speculation import LONGEST, GuessSource, GuessTracker, Speculation, StepTimes

__all__ = [
    "LONGEST",
    "DraftModel",
    "GuessSource",
    "GuessTracker",
    "HeadSource",
    "ModelSource",
    "NgramSource",
    "Speculation",
    "StepTimes",
]
