"""Speculation: guesses of the next tokens of answers, which one step of the model verifies."""

from .draft_model import DraftModel
from .ngrams import NgramSource
from .speculation import LONGEST, Guesses, Source, Speculation, StepTimes

__all__ = ["LONGEST", "DraftModel", "Guesses", "NgramSource", "Source", "Speculation", "StepTimes"]
