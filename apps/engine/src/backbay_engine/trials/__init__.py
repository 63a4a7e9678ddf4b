"""Trials: which of several backends is the fastest for a model and a load."""

from .backend_choice import fastest_backend

__all__ = ["fastest_backend"]
