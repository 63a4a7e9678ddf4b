"""Speculation: guesses of the next tokens of answers, which one step of the model verifies."""

from .draft_model import DraftModel
from .ngrams import NgramSource
from .speculation import LONGEST, Guesses, Pace, Source, Speculation

__all__ = ["LONGEST", "DraftModel", "Guesses", "NgramSource", "Pace", "Source", "Speculation"]
