"""Speculation: guesses of the next tokens of answers, which one step of the model verifies."""

from .contract import Guesses, Source
from .draft_model import DraftModel
from .ngrams import NgramSource
from .pace import Pace
from .speculation import LONGEST, Speculation

__all__ = ["LONGEST", "DraftModel", "Guesses", "NgramSource", "Pace", "Source", "Speculation"]
