"""Scenarios of weights: those of a file, loaded and used, and one weight in several ways at once."""

from . import one_weight as one_weight
from . import weights as weights
