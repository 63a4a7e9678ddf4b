"""Scenarios for the conformance suite: the engine's caches on a backend, and the steps of its models."""

from . import causal_cache, model_steps, picture_cache, rules, seeing

__all__ = ["causal_cache", "model_steps", "picture_cache", "rules", "seeing"]
