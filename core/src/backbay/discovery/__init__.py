"""Installed backends: finding them by entry points, checking, probing and opening them."""

from .entry_points import Declared, conflict, declared
from .installed import BackendEntry, backends, entry, trial_seconds
from .opening import is_auto, open_model
from .speeds import BackendSpeed, KeptTrial, SpeedTrial, version_of

__all__ = [
    "BackendEntry",
    "BackendSpeed",
    "Declared",
    "KeptTrial",
    "SpeedTrial",
    "backends",
    "conflict",
    "declared",
    "entry",
    "is_auto",
    "open_model",
    "trial_seconds",
    "version_of",
]
