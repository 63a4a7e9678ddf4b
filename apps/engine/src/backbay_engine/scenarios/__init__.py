"""Scenarios for the conformance suite: the engine's caches on a backend, and the steps of its models."""

from . import causal_cache, image_encoder, model_steps, picture_cache, recurrent_rules

__all__ = ["causal_cache", "image_encoder", "model_steps", "picture_cache", "recurrent_rules"]
